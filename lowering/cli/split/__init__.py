"""`topoc split`: where to cut a model into chunks."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topoc.dsl.cli import options, view
from topoc.dsl.diagnostic import Place, TopocError, error

if TYPE_CHECKING:
    from topoc.dsl.model import Topology
    from topoc.lowering.cost.profile import Profile
    from topoc.lowering.split.split import Search

_OBJECTIVES = ("time", "bytes", "balance", "memory")
_NEEDS_COSTS = ("time", "balance")
_OF_FITS = ("held_out", "rows", "device", "output")
_OF_SPLITS = (
    *("objective", "chunks", "top", "pareto", "explain", "emit"),
    *("costs", "style", "name", "define"),
)


class _Range(click.ParamType[tuple[int, int]]):
    """`N` or `N-M`."""

    name = "N[-M]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:  # click hands over what it was given
        """Both ends of a range, or fail with its shape."""
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", str(value))
        low = int(found[1]) if found else 0
        high = int(found[2] or found[1]) if found else 0
        if not 1 <= low <= high:
            self.fail(f"{value!r} is no range of chunks, as in 3 or 2-5", param, ctx)
        return low, high


class _Pair(click.ParamType[tuple[str, str]]):
    """Two different objectives."""

    name = "A,B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:  # click hands over what it was given
        """Both, or fail with what there is."""
        if isinstance(value, tuple):
            return value
        one, _, other = str(value).partition(",")
        if one == other or not {one, other} <= {*_OBJECTIVES}:
            self.fail(f"{value!r} is not two of {', '.join(_OBJECTIVES)}", param, ctx)
        return one, other


@click.command("split")
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
@click.option("--objective", type=click.Choice(_OBJECTIVES), default="time", show_default=True)
@click.option("--chunks", type=_Range(), default="1-8", show_default=True, help="How many.")
@click.option("--top", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="K")
@click.option("--pareto", type=_Pair(), help="All that none beats by both, as `time,memory`.")
@click.option("--explain", is_flag=True, help="Say which splits were refused, and by which rule.")
@click.option("--emit", type=click.Path(path_type=Path), help="Write each split as a file there.")
@click.option("--costs", help="A measured chip, or a file of costs. By default, the target's chip.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text")
@click.option("--calibrate", is_flag=True, help="Fit costs on `measured` blocks of the files.")
@click.option(
    "--held-out",
    multiple=True,
    metavar="FILE",
    help="Tell its rows by the fit, and fit without them.",
)
@click.option(
    "--rows",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Fit only the rows that FILE lists, as they are printed.",
)
@click.option("--device", help="Whose figures to fit. By default, the device with most.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="Write the fitted costs there.")
@options.topology
@options.define
@options.model
def command(files: tuple[str, ...], **given: Any) -> None:  # click's options, as declared
    """Show the best ways to cut FILE into chunks, or fit what chunks cost.

    The splits are exact: no other is better by the objective within the budgets and rules.
    """
    _refuse_idle(calibrate=given["calibrate"], pareto=given["pareto"] is not None)
    if given["calibrate"]:
        _calibrate(files, given)
        return
    if len(files) > 1:
        message = "one file at a time is cut"
        raise TopocError(error("value.range", message, Place(files[1]), help="name one FILE"))
    _split(files[0], given)


def _refuse_idle(*, calibrate: bool, pareto: bool) -> None:
    """Options that would do nothing here are refused, lest somebody trusts that they did."""
    known = {one.opts[-1]: one.name or "" for one in click.get_current_context().command.params}
    given = {flag: name for flag, name in known.items() if options.stated(name)}
    for flag, name in given.items():
        if calibrate and name in _OF_SPLITS:
            message = f"{flag} is about splits, and --calibrate fits costs"
        elif not calibrate and name in _OF_FITS:
            message = f"{flag} is about a fit: add --calibrate, or leave it out"
        elif pareto and name in {"top", "objective"}:
            message = f"--pareto shows all splits that none beats by both: leave out {flag}"
        else:
            continue
        raise click.UsageError(message)


def _calibrate(files: tuple[str, ...], given: dict[str, Any]) -> None:  # click's options
    from topoc.lowering.cli.split.calibrate import calibrate
    from topoc.lowering.cost.profile import dumps

    made, told = calibrate(
        files,
        held_out=given["held_out"],
        listed=given["rows"],
        device=given["device"],
        model=given["model"],
    )
    view.result(told)
    if given["output"] is not None:
        given["output"].write_text(dumps(made.profile), "utf-8")
        view.progress(f"wrote {given['output']}\nnext: topoc split FILE --costs {given['output']}")


def _split(file: str, given: dict[str, Any]) -> None:  # click's options
    from topoc.lowering.cli.split.gather import gather
    from topoc.lowering.cli.split.text import as_text
    from topoc.lowering.split.known import beside

    topology = _loaded(file, given)
    search = _searched(topology, given)
    name = ",".join(given["pareto"]) if given["pareto"] else given["objective"]
    told = gather(search, name, beside(file, topology, given["model"]))
    whole = json.dumps(told, indent=1)
    view.result(whole if given["style"] == "json" else as_text(told, explain=given["explain"]))
    if not search.choices:
        view.problems((_none(topology),))
        raise SystemExit(view.FINDINGS)
    if given["emit"] is not None:
        _emit(search, file, given)


def _loaded(file: str, given: dict[str, Any]) -> "Topology":  # click's options
    """The topology; what is wrong with its own cut does not matter here."""
    from topoc.dsl.load import load

    define = dict(given["define"])
    topology, findings = load(file, name=given["name"], define=define, model=given["model"])
    if topology is None:
        view.problems(findings)
        raise SystemExit(view.FINDINGS)
    return topology


def _searched(topology: "Topology", given: dict[str, Any]) -> "Search":  # click's options
    from topoc.lowering.split.split import best, pareto, prepare

    wanted = given["pareto"] or (given["objective"],)
    search = prepare(topology, _costs(topology, given["costs"], wanted), *given["chunks"])
    if given["pareto"]:
        return pareto(search, *given["pareto"])
    return best(search, given["objective"], given["top"])


def _costs(topology: "Topology", named: str | None, wanted: tuple[str, ...]) -> "Profile | None":
    """The costs; raises TopocError where an objective needs them and there are none."""
    from topoc.lowering.cost.profile import chips, choose

    found = choose(named, topology.target.chip)
    if topology.target.unit != "ane" and named is None:
        found = None
    if found is None and {*wanted} & {*_NEEDS_COSTS}:
        target = " ".join(word for word in (topology.target.unit, topology.target.chip) if word)
        message = f"no milliseconds were measured for target `{target}`"
        known = ", ".join(chips())
        help_ = f"measured chips: {known}; take one with --costs, or cut by --objective bytes"
        at = topology.span or Place(topology.name)
        raise TopocError(error("cost.no-profile", message, at, help=help_))
    return found


def _none(topology: "Topology") -> Any:  # a finding
    message = "no split fits the budgets and rules"
    help_ = "`--explain` tells what refused them; ask for more chunks, or relax a budget"
    return error("split.none", message, topology.span or Place(topology.name), help=help_)


def _emit(search: "Search", file: str, given: dict[str, Any]) -> None:  # click's options
    from topoc.lowering.cli.split.emit import emit, settings

    folder = given["emit"]
    for path in emit(search, file, folder, settings(given["define"], given["model"], folder)):
        view.progress(f"wrote {path}")
