"""Findings as one JSON document, whose schema is `dsl/schema/findings.json`."""

import json
from collections.abc import Iterable
from typing import Any

from topoc.dsl.diagnostic import Diagnostic, Label, Place
from topoc.dsl.source import Span


def as_json(findings: Iterable[Diagnostic]) -> str:
    """The same findings as one JSON document."""
    found = [_record(finding) for finding in findings]
    return json.dumps({"findings": found}, indent=2, ensure_ascii=False)


def _record(finding: Diagnostic) -> dict[str, Any]:  # JSON values
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "message": finding.message,
        "at": _label(finding.at),
        "related": [_label(label) for label in finding.related],
        "help": finding.help,
        "fix": [{**_span(edit.span), "text": edit.text} for edit in finding.fix],
    }


def _label(label: Label) -> dict[str, Any]:  # JSON values
    if isinstance(label.at, Place):
        return {"file": label.at.file, "part": label.at.part, "words": label.words}
    return {**_span(label.at), "words": label.words}


def _span(span: Span) -> dict[str, Any]:  # JSON values
    end = Span(span.source, span.end, span.end)
    return {
        "file": span.source.name,
        "line": span.line,
        "column": span.column,
        "end_line": end.line,
        "end_column": end.column,
    }
