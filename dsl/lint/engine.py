"""Runs the rules over a topology, and takes out what its `allow` lines accept."""

from collections.abc import Iterator

from attrs import evolve

from topoc.dsl.diagnostic import Diagnostic, Label, Place, Severity, error, warning
from topoc.dsl.lint.kinds import KINDS
from topoc.dsl.lint.rule import Finding
from topoc.dsl.lint.rules import ALL_RULES
from topoc.dsl.lint.subject import Subject
from topoc.dsl.measure import all_chunks
from topoc.dsl.model import Allowance, Topology
from topoc.dsl.suggest import advice

_RULES = {rule.code: rule for rule in ALL_RULES}
_ALLOWABLE = tuple(code for code, rule in _RULES.items() if not rule.coherence)


def is_allowable(code: str) -> bool:
    """Whether a finding of this code may be accepted with a reason."""
    return code in _ALLOWABLE


def lint(topology: Topology) -> tuple[Diagnostic, ...]:
    """Every finding that the topology does not allow, the worst first."""
    found = tuple(_findings(topology))
    kept = [one.diagnostic for one in found if not _allowed(topology, one)]
    kept += _allowance_findings(topology, found)
    return tuple(sorted(kept, key=lambda one: one.severity, reverse=True))


def _findings(topology: Topology) -> Iterator[Finding]:
    subject = Subject(topology)
    for rule in ALL_RULES:
        for finding in rule().check(subject):
            yield evolve(finding, diagnostic=_named(topology, finding.diagnostic))


def _named(topology: Topology, finding: Diagnostic) -> Diagnostic:
    """A finding in a base's text says for which topology it was found."""
    whole, at = topology.span, finding.at.at
    if whole is None or isinstance(at, Place) or at.source is whole.source:
        return finding
    label = Label(whole, f"`{topology.name}` inherits it")
    return evolve(finding, related=(*finding.related, label))


def _accepts(allowance: Allowance, finding: Finding) -> bool:
    chunks = (None, finding.chunk)
    return allowance.code == finding.diagnostic.code and allowance.chunk in chunks


def _allowed(topology: Topology, finding: Finding) -> bool:
    allowable = finding.diagnostic.code in _ALLOWABLE
    return allowable and any(_accepts(one, finding) for one in topology.allowances)


def _allowance_findings(topology: Topology, found: tuple[Finding, ...]) -> Iterator[Diagnostic]:
    """What is wrong with the `allow` lines themselves."""
    names = [chunk.name for chunk in all_chunks(topology)]
    for allowance in sorted(topology.allowances, key=lambda one: one.span.start):
        code, span = allowance.code, allowance.span
        if code in KINDS or (code in _RULES and _RULES[code].coherence):
            message = f"`{code}` can't be allowed: no bundle can do what it forbids"
            yield error("allow.not-allowable", message, span, help="mend it instead")
        elif code not in _RULES:
            help_ = advice(code, _ALLOWABLE, "these can be allowed:")
            yield error("allow.unknown-code", f"no rule is called `{code}`", span, help=help_)
        elif allowance.chunk is not None and allowance.chunk not in names:
            help_ = advice(allowance.chunk, names, "the chunks are")
            message = f"there is no chunk `{allowance.chunk}`"
            yield error("allow.unknown-chunk", message, span, help=help_)
        elif not any(_accepts(allowance, finding) for finding in found):
            message = f"nothing here is a `{code}` finding"
            yield warning("allow.unused", message, span, help="remove the line")


def worst(findings: tuple[Diagnostic, ...]) -> Severity | None:
    """The gravest severity among findings."""
    return max((one.severity for one in findings), default=None)
