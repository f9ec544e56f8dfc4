"""A report of splits as people read it."""

from collections.abc import Iterator, Sequence

from topoc.lowering.cli.milliseconds import Difference, Ms, spelled
from topoc.lowering.cli.size import size
from topoc.lowering.cli.split import report


def as_text(told: report.Report, *, explain: bool) -> str:
    """The splits in order, ties and measurements, the layouts beside; with reasons if asked."""
    chunks = f"{told['least']} to {told['most']} chunks"
    if told["least"] > told["most"]:
        chunks = f"at least {told['least']} chunks and at most {told['most']}"
    if told["least"] == told["most"]:
        chunks = f"{told['least']} chunk{'s' * (told['least'] != 1)}"
    source = f"ms as fitted on {told['costs']}" if told["costs"] else "no ms: no chip was measured"
    lines = [f"{told['topology']}: {_count(told)}, {chunks}; {source}"]
    lines += ["", *_splits(told["splits"])] if told["splits"] else []
    lines += [*_ties(told)]
    if told["layouts"]:
        lines += ["", "layouts beside it, cut like this", *_layouts(told["layouts"])]
    if explain:
        lines += ["", "refused", *_refused(told)]
    return "\n".join(line.rstrip() for line in lines)


def _count(told: report.Report) -> str:
    count, objectives = len(told["splits"]), told["objective"].split(",")
    if len(objectives) > 1:
        return f"{count} split{'s' * (count != 1)} that none beats by {' and '.join(objectives)}"
    best = "no split fits" if count == 0 else f"the {count} best splits"
    return f"{'the best split' if count == 1 else best} by {objectives[0]}"


def _name(layers: Sequence[int]) -> str:
    return "/".join(map(str, layers))


def _splits(splits: Sequence[report.Split]) -> Iterator[str]:
    width = max((len(_name(one["layers"])) for one in splits), default=0)
    for place, one in enumerate(splits, 1):
        kv, most = size(one["kv_bytes"]), size(one["largest_bytes"])
        rest = f"KV {kv} across walls, largest chunk {most} in fp16"
        tie = "  tie" if one["from_best"] and not one["from_best"]["resolved"] else ""
        yield f"{place:3}  {_name(one['layers']):{width}}  {_step(one['step'])}{rest}{tie}"
        yield from (f"     {note}" for note in _measured(one["measured"]))
    notes = [note for one in splits if one["step"] for note in one["step"]["outside"]]
    for note in list(dict.fromkeys(notes))[:4]:
        yield f"     outside the fit: {note}"


def _step(step: Ms | None) -> str:
    if step is None:
        return ""
    return f"{spelled(step):>13}, {1000 / step['ms']:.1f} tok/s, "


def _measured(figures: Sequence[report.Figure]) -> Iterator[str]:
    for one in figures:
        low, high = f"{one['low']:.1f}", f"{one['high']:.1f}"
        span = low if low == high else f"{low} to {high}"
        but = "" if one["alike"] else ", with KV in other rows or other weights"
        yield f"measured as {one['topology']}: {span} ms on {one['device']}{but}"


def _ties(told: report.Report) -> Iterator[str]:
    """Which splits the data can't tell from the best, and which of those were measured."""
    ties = [
        place
        for place, one in enumerate(told["splits"], 1)
        if one["from_best"] and not one["from_best"]["resolved"]
    ]
    if ties:
        yield ""
        yield (
            f"{_runs(ties)} tie with 1: the interval of the difference holds zero, and the data do"
            " not tell which is faster"
        )
    close = [
        layout["name"]
        for layout in told["layouts"]
        if layout["measured"] and not layout["refused"]
        if layout["from_best"] and not layout["from_best"]["resolved"]
    ]
    if close:
        yield f"measured layouts that tie with 1: {', '.join(close)}"


def _runs(places: Sequence[int]) -> str:
    """1, 2, 3, 7 as `1 to 3, 7`."""
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(str(one[0]) if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in runs)


def _layouts(layouts: Sequence[report.Layout]) -> Iterator[str]:
    """One line a cut, with the names of all layouts that are cut so."""
    cut = max(len(_name(one["layers"])) for one in layouts)
    groups: dict[str, list[report.Layout]] = {}
    for one in layouts:
        groups.setdefault(_name(one["layers"]), []).append(one)
    for name, group in groups.items():
        first = group[0]
        names = ", ".join(one["name"] for one in group)
        if first["refused"]:
            codes = dict.fromkeys(reason["code"] for reason in first["refused"])
            yield f"  {name:{cut}}  refused: {', '.join(codes)}: {names}"
            continue
        step = _step(first["step"]).removesuffix(", ")
        cost = f"  {step}{_apart(first['from_best'])}" if step else ""
        yield f"  {name:{cut}}{cost}: {names}"
        notes = [note for one in group for note in _measured(one["measured"])]
        yield from (f"  {'':{cut}}  {note}" for note in notes)


def _apart(one: Difference | None) -> str:
    if one is None:
        return ""
    told = f", {one['ms']:+.1f} ms ({one['low']:+.1f} to {one['high']:+.1f}) from the best"
    return told if one["resolved"] else f"{told}, a tie"


def _refused(told: report.Report) -> Iterator[str]:
    if not (told["refused"] or told["bounds"] or any(one["refused"] for one in told["layouts"])):
        yield "  nothing: every split that was looked at fits"
    for bound in told["bounds"]:
        least = f"; the least of any is {bound['least']}" if bound["least"] else ""
        yield f"  expect.breach: splits that break `{bound['budget']}`{least}"
    for one in told["refused"]:
        if not one["splits"]:
            yield f"  {one['code']}: {one['chunks']} chunks break `{one['example']}`"
            continue
        alone = f"{one['chunks']} chunks by themselves, " if one["chunks"] else ""
        yield f"  {one['code']}: {alone}{one['splits']} splits; as {one['example']}"
    for layout in told["layouts"]:
        for reason in layout["refused"]:
            name = f"{layout['name']} ({_name(layout['layers'])})"
            yield f"  {name}: {reason['code']}: {reason['message']}"
