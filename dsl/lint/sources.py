"""What evidence needs beside itself: where its documents are, and whether it is out of date."""

import re
from collections.abc import Iterable

from topoc.dsl.lint.rule import Evidence

COREML_LLM = (
    "CoreML-LLM is github.com/john-rocky/CoreML-LLM at 72178c6 of 2026-05-13;"
    " OWNER/NAME#N is an issue or pull request on GitHub"
)
_VERSION = re.compile(r"coremltools (\d+)\.(\d+)")


def footnote(evidence: Iterable[Evidence]) -> str:
    """Where the documents are, if any of the evidence cites one of them."""
    return (
        COREML_LLM if any(re.search(r"CoreML-LLM|\w/[\w-]+#\d", e.source) for e in evidence) else ""
    )


def context(one: Evidence) -> str:
    """Figure, device and toolchain in a line, as far as they are known."""
    return "; ".join(part for part in (one.figure, one.device, one.toolchain) if part)


def aged(one: Evidence, installed: str | None) -> str:
    """What to say of evidence that is older than the coremltools in use; mostly nothing."""
    then, now = _VERSION.search(one.toolchain), _VERSION.search(f"coremltools {installed}")
    if then is None or now is None or then.groups() == now.groups():
        return ""
    older = tuple(map(int, then.groups())) < tuple(map(int, now.groups()))
    return f"older than coremltools {installed}, which is in use" if older else ""


def installed_coremltools() -> str | None:
    """The version of coremltools that is installed, without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("coremltools")
    except PackageNotFoundError:
        return None
