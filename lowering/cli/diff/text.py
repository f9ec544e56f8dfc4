"""Differences as people read them."""

from collections.abc import Iterator

from topoc.dsl.resolve.selector import listed
from topoc.lowering.cli.diff import report
from topoc.lowering.cli.milliseconds import Ms, apart, spelled
from topoc.lowering.cli.size import size

TITLES = {
    "settings": "settings",
    "chunks": "moved",
    "kv": "KV",
    "attention": "attention",
    "functions": "functions",
    "quantisation": "quantisation",
    "budgets": "budgets",
    "verdict": "verdict",
}


def as_text(told: report.Report) -> str:
    """What differs, the bytes and ms of either side, and what a host would notice."""
    names = f"{told['before']['topology']} → {told['after']['topology']}"
    if told["same"]:
        return f"{names}: no difference{_unbuilt(told)}"
    lines = [names]
    groups: dict[str, list[report.Change]] = dict(told["changes"])  # type: ignore[arg-type] # all alike
    for name, title in TITLES.items():
        if groups[name]:
            lines += ["", title, *(f"  {_change(one)}" for one in groups[name])]
    for side in (told["before"], told["after"]):
        lines += ["", side["topology"], *_side(side)]
    lines += ["", *step(told), *_features(told)]
    return "\n".join(lines).rstrip()


def _unbuilt(told: report.Report) -> str:
    if not told["not_built"]:
        return ""
    return "\n" + "\n".join(f"  features not compared: {one}" for one in told["not_built"])


def _change(one: report.Change) -> str:
    if one["before"] is None:
        return f"+ {one['what']}: {one['after']}"
    if one["after"] is None:
        return f"- {one['what']}: {one['before']}"
    return f"{one['what']}: {one['before']} → {one['after']}"


def _side(side: report.Side) -> Iterator[str]:
    width = max((len(one["name"]) for one in side["chunks"]), default=0)
    for one in side["chunks"]:
        layers = listed(one["layers"]) if one["layers"] else "no layers"
        weights = f"{size(one['stored_bytes'])} stored, {size(one['loaded_bytes'])} in fp16"
        kv = f"KV {size(one['kv_bytes_in'])} in, {size(one['kv_bytes_out'])} out"
        yield f"  {one['name']:{width}}  {layers}: {weights}; {kv}{_ms(one['ms'])}"
    whole = f"{size(side['stored_bytes'])} stored; KV {size(side['kv_bytes'])} across walls"
    yield f"  {'step':{width}}  {whole}{_ms(side['step'])}"
    yield from (f"  {'':{width}}  measured: {one}" for one in side["measured"])


def _ms(one: Ms | None) -> str:
    return "" if one is None else f"; {spelled(one)}"


def step(told: report.Report) -> Iterator[str]:
    """How the decode step differs, in a line."""
    more = told["after"]["kv_bytes"] - told["before"]["kv_bytes"]
    line = f"decode step: KV across walls {'-' if more < 0 else '+'}{size(abs(more))}"
    if told["step"] is not None:
        yield f"{line}; {apart(told['step'])}"
    else:
        yield f"{line}; no ms of both: name a measured chip with --costs"


def _features(told: report.Report) -> Iterator[str]:
    yield ""
    if told["features"] is None:
        yield "features: not compared, for programs can't be built"
        yield from (f"  {one}" for one in told["not_built"])
        return
    if not told["features"]:
        yield "features: the same; a host drives both alike"
        return
    broken = sum(one["breaks_host"] for one in told["features"])
    yield f"features: {len(told['features'])} differ, {broken} of them break a host of the first"
    groups: dict[tuple[str, str], list[report.Feature]] = {}
    for one in told["features"]:
        groups.setdefault((one["chunk"], one["function"]), []).append(one)
    for (chunk, function), group in groups.items():
        yield from _function(told, f"{chunk} {function}", chunk, group)


def _function(
    told: report.Report, name: str, chunk: str, group: list[report.Feature]
) -> Iterator[str]:
    """The features of one function; a chunk that one side lacks is told in a line."""
    for side, sign in (("before", "+"), ("after", "-")):
        here = told["before"] if side == "before" else told["after"]
        if chunk not in {one["name"] for one in here["chunks"]}:
            yield f"  ! {sign} {name}: all its {len(group)} inputs and outputs"
            return
    for one in group:
        mark = "!" if one["breaks_host"] else " "
        change = report.Change(
            what=f"{name} {one['name']}", before=one["before"], after=one["after"]
        )
        yield f"  {mark} {_change(change)}"
