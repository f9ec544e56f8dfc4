"""Pictures and reports as HTML and SVG. All words of topologies are escaped."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from topoc.dsl.diagnostic import Diagnostic
from topoc.dsl.model import Topology
from topoc.dsl.plain import Plain
from topoc.dsl.resolve.selector import listed
from topoc.lowering.cli.diff import report as diff_report
from topoc.lowering.cli.diff.text import TITLES, step
from topoc.lowering.cli.milliseconds import Ms, spelled
from topoc.lowering.cli.page import draw as place
from topoc.lowering.cli.page import label, scene
from topoc.lowering.cli.page.draw import Drawing, draw, longest
from topoc.lowering.cli.page.gather import Gatherer, changed_layers
from topoc.lowering.cli.page.places import Places
from topoc.lowering.cli.plan import report
from topoc.lowering.cli.plan.text import amount
from topoc.lowering.cli.plan.times import Times
from topoc.lowering.cli.size import size

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


@frozen(kw_only=True, eq=False, repr=False)
class Subject(Plain):
    """A topology with what was found in it and what it may take."""

    topology: Topology
    findings: tuple[Diagnostic, ...]
    times: Times | None


@frozen(kw_only=True, eq=False, repr=False)
class _Side(Plain):
    """One half of a diff."""

    told: diff_report.Side
    path: str
    drawings: tuple[Drawing, ...]
    findings: tuple[scene.Finding, ...]
    finding: str


def plan_page(subject: Subject, told: report.Report | None) -> str:
    """The page of `plan`; without a report, what the topology alone tells."""
    places = places_of(subject)
    found = _pictures(subject, places, told)
    drawings = _drawings(found, longest(found), "p")
    return _render(
        "plan.html.jinja",
        about=_about(subject.topology),
        told=told,
        calls=_calls(subject),
        basis=subject.times.costs.device if subject.times and longest(found) else None,
        drawings=drawings,
        findings=places.listed(),
        beyond=_beyond(found),
        **_kinds(found),
    )


def plan_svg(subject: Subject, told: report.Report | None) -> str:
    """The picture of the first chunk list alone, as a file of its own."""
    found = _pictures(subject, places_of(subject), told)
    name = f"{subject.topology.name}: layers and chunks of {', '.join(found[0].functions)}"
    drawing = draw(found[0], longest(found[:1]), "picture")
    return _render("alone.svg.jinja", drawing=drawing, name=name)


def diff_page(
    subjects: Sequence[tuple[Subject, report.Report | None]], told: diff_report.Report
) -> str:
    """The page of `diff`: both pictures, to one scale, with what differs marked.

    Each subject comes with its plan, where there is one.
    """
    changed = changed_layers(*(subject.topology for subject, _ in subjects))
    places = [places_of(subject) for subject, _ in subjects]
    found = [
        _pictures(subject, at, plan, changed)
        for (subject, plan), at in zip(subjects, places, strict=True)
    ]
    all_ = [picture for pictures in found for picture in pictures]
    sides = [
        _Side(
            told=told["before"] if path == "before" else told["after"],
            path=path,
            drawings=_drawings(pictures, longest(all_), path[0], f"{path}-"),
            findings=at.listed(),
            finding=f"{path}-",
        )
        for path, pictures, at in zip(("before", "after"), found, places, strict=True)
    ]
    summary = " ".join(step(told))
    return _render(
        "diff.html.jinja", told=told, titles=TITLES, summary=summary, sides=sides, **_kinds(all_)
    )


def _pictures(
    subject: Subject,
    places: Places,
    told: report.Report | None,
    changed: Collection[int] = (),
) -> tuple[scene.Picture, ...]:
    topology, times = subject.topology, subject.times
    made = Gatherer(topology=topology, places=places, times=times, told=told, changed=changed)
    return made.pictures()


def places_of(subject: Subject) -> Places:
    """The findings of a topology; those of functions and budgets know what they are about."""
    places = Places(subject.findings)
    for function in subject.topology.functions:
        places.findings((function.span,), f"function {function.name}")
    for budget in subject.topology.budgets:
        places.findings((budget.span,), f"the budget {budget.measure} {budget.relation}")
    return places


def _calls(subject: Subject) -> list[tuple[str, Ms]]:
    """What each call takes, where it is known."""
    times = subject.times
    found = ((one.name, times.call(one.name)) for one in subject.topology.functions if times)
    return [(name, ms) for name, ms in found if ms is not None]


def _beyond(found: Sequence[scene.Picture]) -> list[str]:
    """What the fit of the ms has not seen, each once."""
    runs = [run for one in found for chunk in one.chunks for run in chunk.runs]
    return list(dict.fromkeys(note for run in runs if run.ms for note in run.ms["outside"]))


def _drawings(
    found: Sequence[scene.Picture], scale: float, id_: str, finding: str = ""
) -> tuple[Drawing, ...]:
    return tuple(draw(one, scale, f"{id_}{at}", finding) for at, one in enumerate(found))


def _kinds(found: Sequence[scene.Picture]) -> dict[str, Any]:  # what the legend needs
    kinds = dict.fromkeys(layer.attention for one in found for layer in one.layers)
    arrows = [arrow for one in found for arrow in one.arrows]
    return {
        "kinds": list(kinds),
        "across": any(one.crosses for one in arrows),
        "inside": any(not one.crosses for one in arrows),
    }


def _about(topology: Topology) -> dict[str, str | int]:
    target, table = topology.target, topology.layers
    words = (target.unit, target.deployment, target.chip)
    return {
        "name": topology.name,
        "doc": topology.doc,
        "status": topology.status,
        "model": f"{table.family}, {len(table.layers)} layers",
        "target": " ".join(word for word in words if word),
        "context": topology.context,
        "hidden": table.hidden,
    }


def _render(template: str, **given: Any) -> str:  # whatever a template names
    return _environment().get_template(template).render(**given)


def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "size": size,
        "spelled": spelled,
        "label": label,
        "at": place,
        "held": listed,
        "amount": amount,
    }
    return made
