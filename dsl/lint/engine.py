"""Runs the rules over what there is, and takes out what a topology's `allow` lines accept."""

from collections.abc import Iterable, Iterator

from attrs import evolve, frozen

from topoc.dsl.diagnostic import Diagnostic, Label, Place, Severity, error, warning
from topoc.dsl.lint.checkpoint import Checkpoint
from topoc.dsl.lint.kinds import KINDS
from topoc.dsl.lint.rule import Finding
from topoc.dsl.lint.rules import CHECKPOINT, CODES, MIL, TOPOLOGY, rule
from topoc.dsl.lint.subject import GivenUp, Mil, Subject, nothing
from topoc.dsl.measure import all_chunks
from topoc.dsl.model import Allowance, Target, Topology
from topoc.dsl.plain import Plain
from topoc.dsl.suggest import advice


@frozen(kw_only=True, eq=False, repr=False)
class Options(Plain):
    """Which rules to run, and for which target if not the topology's own.

    A selection is of codes or families: `state.update`, `state`. Rules of coherence always run.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    target: Target | None = None

    def wants(self, code: str) -> bool:
        """Whether a rule runs."""
        chosen = not self.select or _among(code, self.select)
        return chosen and not _among(code, self.ignore)


@frozen(kw_only=True, eq=False, repr=False)
class Subjects(Plain):
    """All that one run looks at; what is missing takes its rules out of the run."""

    topology: Topology | None = None
    given_up: GivenUp = nothing  # topologies near by that were given up
    packages: tuple[Mil, ...] = ()
    checkpoint: Checkpoint | None = None


@frozen(kw_only=True, eq=False, repr=False)
class Report(Plain):
    """What a run found, the worst first, which rules ran, and which could not for want of what."""

    findings: tuple[Diagnostic, ...] = ()
    ran: frozenset[str] = frozenset()
    missed: tuple[tuple[str, str], ...] = ()  # a code, and the subject that was not there


def unasked(_: Subjects) -> Report:
    """The report of no rule, for who reads topologies and tells no findings of lint."""
    return Report()


def is_allowable(code: str) -> bool:
    """Whether a finding of this code may be accepted with a reason."""
    return code in CODES and not rule(code).coherence


ALL = Options()


def lint(topology: Topology, options: Options = ALL) -> tuple[Diagnostic, ...]:
    """Every finding in a topology that it does not allow, the worst first."""
    return examine(Subjects(topology=topology), options).findings


def examine(subjects: Subjects, options: Options = ALL) -> Report:
    """Run the rules of every subject that is there."""
    topology = subjects.topology
    if topology is not None and options.target is not None:
        topology = evolve(topology, target=options.target)
        subjects = evolve(subjects, topology=topology)
    runs = [run for run in _runs(subjects) if options.wants(run.code)]
    ran = frozenset(run.code for run in runs)
    found = tuple(finding for run in runs for finding in run.findings)
    if topology is None:
        kept = [one.diagnostic for one in found]
    else:
        found = tuple(_named(topology, one) for one in found)
        kept = [one.diagnostic for one in found if not _allowed(topology, one)]
        kept += _allowance_findings(topology, found, ran)
    findings = tuple(sorted(kept, key=lambda one: one.severity, reverse=True))
    return Report(findings=findings, ran=ran, missed=tuple(_missed(options, ran)))


@frozen(eq=False, repr=False)
class _Run(Plain):
    """One rule on one subject."""

    code: str
    findings: Iterable[Finding]


def _runs(subjects: Subjects) -> Iterator[_Run]:
    if subjects.topology is not None:
        subject = Subject(subjects.topology, subjects.given_up)
        yield from (_Run(code, rule(code)().on_topology(subject)) for code in TOPOLOGY)
    for package in subjects.packages:
        yield from (_Run(code, _on_package(code, package)) for code in MIL)
    if subjects.checkpoint is not None:
        checkpoint = subjects.checkpoint
        yield from (_Run(code, rule(code)().on_checkpoint(checkpoint)) for code in CHECKPOINT)


def _on_package(code: str, package: Mil) -> Iterator[Finding]:
    """The findings of a rule; about the Neural Engine only where the package may meet it."""
    kind = rule(code)
    if package.on_neural_engine or not kind.placement:
        yield from kind().on_mil(package)


def _missed(options: Options, ran: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The rules that were wanted and did not run, and the subject that was not there."""
    for code in CODES:
        if code not in ran and options.wants(code):
            yield code, next(name for name, codes in _SUBJECTS if code in codes)


_SUBJECTS = (("topology", TOPOLOGY), ("mil", MIL), ("checkpoint", CHECKPOINT))


def _among(code: str, chosen: tuple[str, ...]) -> bool:
    """Whether a code or its family is among some."""
    return code in chosen or code.partition(".")[0] in chosen


def _named(topology: Topology, finding: Finding) -> Finding:
    """A finding in a base's text says for which topology it was found."""
    one = finding.diagnostic
    whole, at = topology.span, one.at.at
    if whole is None or isinstance(at, Place) or at.source is whole.source:
        return finding
    label = Label(whole, f"`{topology.name}` inherits it")
    return evolve(finding, diagnostic=evolve(one, related=(*one.related, label)))


def _accepts(allowance: Allowance, finding: Finding) -> bool:
    chunks = (None, finding.chunk)
    return allowance.code == finding.diagnostic.code and allowance.chunk in chunks


def _allowed(topology: Topology, finding: Finding) -> bool:
    return any(_accepts(one, finding) for one in topology.allowances) and is_allowable(
        finding.diagnostic.code
    )


def _allowance_findings(
    topology: Topology, found: tuple[Finding, ...], ran: frozenset[str]
) -> Iterator[Diagnostic]:
    """What is wrong with the `allow` lines themselves."""
    names = [chunk.name for chunk in all_chunks(topology)]
    for allowance in sorted(topology.allowances, key=lambda one: one.span.start):
        code, span = allowance.code, allowance.span
        if code in KINDS or (code in CODES and not is_allowable(code)):
            message = f"`{code}` can't be allowed: no bundle can do what it forbids"
            yield error("allow.not-allowable", message, span, help="mend it instead")
        elif code not in CODES:
            known = [one for one in CODES if is_allowable(one)]
            help_ = advice(code, known, "these can be allowed:")
            yield error("allow.unknown-code", f"no rule is called `{code}`", span, help=help_)
        elif allowance.chunk is not None and allowance.chunk not in names:
            help_ = advice(allowance.chunk, names, "the chunks are")
            message = f"there is no chunk `{allowance.chunk}`"
            yield error("allow.unknown-chunk", message, span, help=help_)
        elif code in ran and not any(_accepts(allowance, finding) for finding in found):
            message = f"nothing here is a `{code}` finding"
            yield warning("allow.unused", message, span, help="remove the line")


def worst(findings: Iterable[Diagnostic]) -> Severity | None:
    """The gravest severity among findings."""
    return max((one.severity for one in findings), default=None)
