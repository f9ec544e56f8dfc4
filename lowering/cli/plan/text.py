"""A report as people read it."""

from collections.abc import Iterator

from topoc.dsl.resolve.budgets import MEASURES
from topoc.lowering.cli.milliseconds import rate, spelled
from topoc.lowering.cli.plan import report
from topoc.lowering.cli.size import size


def as_text(told: report.Report) -> str:
    """The model, each chunk with its functions, and what the host does and keeps."""
    target = " ".join(word for word in told["target"].values() if isinstance(word, str))
    layers = sum(len(chunk["layers"]) for chunk in told["chunks"])
    model = f"{told['family']}, {_layers(layers)}, width {told['hidden']}"
    lines = [
        f"{told['topology']}: {told['doc']}" if told["doc"] else told["topology"],
        f"{model}; context {told['context']}; {target}; {told['status']}",
    ]
    for chunk in told["chunks"]:
        lines += ["", *_chunk(chunk)]
    lines += ["", "calls", *_calls(told["calls"]), *_costs(told)]
    lines += ["", "caches", *_table(map(_cache, told["caches"]))]
    lines += ["", "tables of the host", *_table(map(_host_table, told["tables"]))]
    if told["budgets"]:
        lines += ["", "budgets", *map(_budget, told["budgets"])]
    if told["compressed"]:
        lines += ["", "compressed layers, the worst first", *map(_layer, told["layers"])]
        lines += ["", "compressed weights, the worst first", *map(_weight, told["compressed"])]
    whole = size(told["download_bytes"])
    return "\n".join([*lines, "", f"download: {whole}, and the tokenizer and package descriptions"])


def _layers(count: int) -> str:
    return f"{count} layer{'s' * (count != 1)}"


def _chunk(chunk: report.Chunk) -> Iterator[str]:
    layers = chunk["layers"]
    span = f"L{layers[0]}-{layers[-1]}, {_layers(len(layers))}" if layers else "no layers"
    holds = ", ".join([span, *chunk["parts"]])
    stored, loaded = size(chunk["stored_bytes"]), size(chunk["loaded_bytes"])
    yield f"{chunk['name']}: {holds}; {stored} stored, {loaded} loaded"
    for one in chunk["functions"]:
        time = f"; {spelled(one['ms'])}" if one["ms"] else ""
        weights = _weights(chunk, one)
        yield f"  {one['name']} on {one['unit']}: {weights}{_traffic(one)}{time}"
        yield from (_feature("<-", feature) for feature in one["inputs"])
        yield from (_feature("->", feature) for feature in one["outputs"])


def _weights(chunk: report.Chunk, one: report.Function) -> str:
    """A function's share of the weights, where it is not all of them."""
    if one["loaded_bytes"] == chunk["loaded_bytes"]:
        return ""
    return f"{size(one['stored_bytes'])} stored, {size(one['loaded_bytes'])} loaded; "


def _traffic(one: report.Function | report.Call) -> str:
    return f"KV {size(one['kv_bytes_in'])} in, {size(one['kv_bytes_out'])} out"


def _feature(arrow: str, one: report.Feature) -> str:
    of = f" {one['of']}" if one["of"] else ""
    shape = _shape(one["shape"])
    return f"    {one['name']:20}{shape:>18} {one['dtype']:5}  {arrow} {one['kind']}{of}"


def _shape(shape: list[int]) -> str:
    return "×".join(map(str, shape))


def _calls(calls: list[report.Call]) -> Iterator[str]:
    width = max(len(one["name"]) for one in calls)
    for one in calls:
        tokens = f"{one['tokens']} token{'s' * (one['tokens'] != 1)}"
        time = f"; {spelled(one['ms'])}, {rate(one['ms'], one['tokens'])}" if one["ms"] else ""
        yield f"  {one['name']:{width}}  {tokens}, {_traffic(one)}{time}"


def _costs(told: report.Report) -> Iterator[str]:
    """What the milliseconds rest on, and where they go beyond it."""
    if told["costs"] is None:
        yield "  no ms: this unit and chip were not measured; --costs takes another chip's"
        return
    yield f"  ms as fitted on {told['costs']}, with what nine of ten figures lie within"
    notes = [note for one in told["calls"] if one["ms"] for note in one["ms"]["outside"]]
    for note in dict.fromkeys(notes):
        yield f"  beyond the fit: {note}"


def _cache(one: report.Cache) -> tuple[str, str, str, int]:
    name = f"{one['id']} (state)" if one["store"] == "state" else one["id"]
    return name, _shape(one["shape"]), one["dtype"], one["bytes"]


def _host_table(one: report.Table) -> tuple[str, str, str, int]:
    return one["name"], _shape(one["shape"]), one["dtype"], one["bytes"]


def _table(rows: Iterator[tuple[str, str, str, int]]) -> Iterator[str]:
    """Name, shape, element type and bytes, and all bytes together."""
    whole = 0
    for name, shape, dtype, held in rows:
        whole += held
        yield f"  {name:22}{shape:>18} {dtype:5} {size(held):>10}"
    yield f"  {'together':22}{'':18} {'':5} {size(whole):>10}"


def _layer(one: report.Layer) -> str:
    name = "outside" if one["layer"] is None else f"L{one['layer']}"
    return f"  {name:26}{_damage(one)}"


def _weight(one: report.Compressed) -> str:
    return f"  {one['weight']:26}{_damage(one)}  {one['scheme']}"


def _damage(one: report.Layer | report.Compressed) -> str:
    ratio = "exact" if one["sqnr"] is None else f"{one['sqnr']:.1f} dB"
    error = "" if one["output_error"] is None else f"output error {one['output_error']:.5f}"
    return f"{size(one['bytes']):>10} {ratio:>8} {error:>20}".rstrip()


def _budget(one: report.Budget) -> str:
    limit = amount(one, one["limit"])
    line = f"  {one['measure']} {one['relation']} {limit}: "
    if one["value"] is None or one["headroom"] is None:
        return line + "known only after lowering or on a device"
    place = f" in {one['chunk']}" if one["chunk"] else ""
    place = " predicted" if one["measure"] == "ms per step" else place
    spare, rest = one["headroom"], amount(one, abs(one["headroom"]))
    ending = "to spare" if spare >= 0 else "too much" if one["relation"][0] == "<" else "off"
    return f"{line}{amount(one, one['value'])}{place}, {rest} {ending}"


def amount(one: report.Budget, value: float) -> str:
    """A value of a budget in its unit."""
    if "ms" in MEASURES[one["measure"]]:
        return f"{value:.4g} ms"
    return size(round(value)) if "B" in MEASURES[one["measure"]] else f"{value:g}"
