"""Findings as a SARIF 2.1.0 log, which code hosts and editors read."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from topoc.dsl.diagnostic import Diagnostic, Edit, Label, Place
from topoc.dsl.render.annotation import end_of, file_of, words
from topoc.dsl.source import Span

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def as_sarif(findings: Sequence[Diagnostic], version: str, says: Callable[[str], str]) -> str:
    """The log of one run of this version; `says` tells what a code stands for, in a sentence."""
    codes = list(dict.fromkeys(finding.code for finding in findings))
    rules = [{"id": code, "shortDescription": {"text": says(code)}} for code in codes]
    run = {
        "tool": {"driver": {"name": "topoc", "version": version, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, codes.index(finding.code)) for finding in findings],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2)


def _result(finding: Diagnostic, index: int) -> dict[str, Any]:  # JSON values
    result: dict[str, Any] = {  # JSON values
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity.value,
        "message": {"text": words(finding)},
        "locations": [_location(finding.at)],
    }
    if finding.related:
        result["relatedLocations"] = [
            {"id": number, **_location(label)} for number, label in enumerate(finding.related)
        ]
    if finding.fix:
        result["fixes"] = [_fix(finding)]
    return result


def _location(label: Label) -> dict[str, Any]:  # JSON values
    place: dict[str, Any] = {"artifactLocation": _artifact(label.at)}  # JSON values
    if isinstance(label.at, Span):
        place["region"] = _region(label.at)
    location: dict[str, Any] = {"physicalLocation": place}  # JSON values
    if isinstance(label.at, Place) and label.at.part:
        location["logicalLocations"] = [{"fullyQualifiedName": label.at.part}]
    if label.words:
        location["message"] = {"text": label.words}
    return location


def _artifact(at: Span | Place) -> dict[str, str]:
    """A relative URI, or one of a file elsewhere on this machine."""
    name = file_of(at)
    path = Path(name)
    return {"uri": path.as_uri() if path.is_absolute() else quote(name)}


def _region(span: Span) -> dict[str, int]:
    end = end_of(span)
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": end.line,
        "endColumn": end.column,
    }


def _fix(finding: Diagnostic) -> dict[str, Any]:  # JSON values
    """The edits of a finding, those of one file together."""
    by_file: dict[str, list[Edit]] = {}
    for edit in finding.fix:
        by_file.setdefault(edit.span.source.name, []).append(edit)
    changes = [
        {
            "artifactLocation": _artifact(edits[0].span),
            "replacements": [
                {"deletedRegion": _region(edit.span), "insertedContent": {"text": edit.text}}
                for edit in edits
            ],
        }
        for edits in by_file.values()
    ]
    return {"description": {"text": finding.help or finding.message}, "artifactChanges": changes}
