"""The last lines of `topoc lint`: which rules ran, which could not, and what nobody has proved."""

from collections.abc import Iterator, Sequence

from attrs import evolve

from topoc.dsl.lint.engine import Options, Report
from topoc.dsl.model import Target, Topology
from topoc.dsl.targets.profile import Profile
from topoc.dsl.targets.profiles import profile

_UNPROVEN = "this does not prove placement, speed or accuracy, which take a device"
_WANTS = {
    "topology": "a topology",
    "mil": "programs (--mil builds them)",
    "checkpoint": "weights (`topoc compile` has them)",
}


def lines(
    reports: Sequence[Report], topologies: Sequence[Topology], options: Options
) -> Iterator[str]:
    """What ran, what did not and why, what the chips' profiles do not know."""
    if reports:
        ran = frozenset(code for report in reports for code in report.ran)
        missed = {code: why for report in reports for code, why in report.missed}
        yield _told(ran, {code: why for code, why in missed.items() if code not in ran})
    for known in _profiles(topologies, options):
        what = "; ".join(known.unknown)
        stands = f"; the figures of {known.borrowed} stand in" if known.borrowed else ""
        yield f"unknown of {_called(known)}: {what}{stands}"
    yield _UNPROVEN


def _told(ran: frozenset[str], missed: dict[str, str]) -> str:
    text = f"rules: {len(ran)} ran"
    if missed:
        reasons = list(dict.fromkeys(missed.values()))
        counted = ((list(missed.values()).count(why), _WANTS.get(why, why)) for why in reasons)
        said = ", ".join(
            f"{many} {'wants' if many == 1 else 'want'} {why}" for many, why in counted
        )
        text += f", {len(missed)} could not: {said}"
    return text


def _profiles(topologies: Sequence[Topology], options: Options) -> tuple[Profile, ...]:
    """The profiles that rules of placement were judged by, each once."""
    targets: list[Target] = [options.target or one.target for one in topologies]
    placed = [one for one in targets if one.unit in {"ane", "all"}]
    return tuple({one.chip: profile(one.chip) for one in placed}.values())


def _called(known: Profile) -> str:
    return "the target" if known.device == "any" else known.name


def lacking(report: Report, subject: str, why: str) -> Report:
    """A report whose rules on a subject could not run for a reason of their own."""
    missed = ((code, why if what == subject else what) for code, what in report.missed)
    return evolve(report, missed=tuple(missed))
