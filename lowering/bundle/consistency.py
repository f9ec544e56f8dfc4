"""Where a manifest disagrees with itself: names that nobody defines, shapes that don't meet."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite

from topoc.dsl.diagnostic import Diagnostic, Place, error
from topoc.lowering.bundle.calls import of_call, of_states
from topoc.lowering.bundle.scope import Problem, Scope, unknown
from topoc.lowering.bundle.sinks import of_output
from topoc.lowering.bundle.sources import of_input
from topoc.lowering.manifest import Buffer, Function, Manifest, PerLayer

REMEDY = "compile the bundle again"


def disagreements(manifest: Manifest, path: str) -> Iterator[Diagnostic]:
    """Every disagreement, with the field where it stands."""
    for found in (*_whole(manifest), *_buffers(manifest), *of_states(manifest)):
        yield _told(found, path, "$")
    if manifest.per_layer is not None:
        for found in _per_layer(manifest, manifest.per_layer):
            yield _told(found, path, "$.per_layer")
    for i, function in enumerate(manifest.functions):
        for found in (*_steps(manifest, function), *of_call(manifest, function)):
            yield _told(found, path, f"$.functions[{i}]")


def _told(found: Problem, path: str, root: str) -> Diagnostic:
    return error(found.code, found.message, Place(path, root + found.part), help=REMEDY)


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _whole(manifest: Manifest) -> Iterator[Problem]:
    """Names that stand once, an answer to any prompt, host tables within the vocabulary."""
    if not any(one.answers and not one.full_only for one in manifest.functions):
        message = "the bundle has no function that answers a prompt of any length"
        yield Problem("bundle.no-function", message, ".functions")
    for part, names in (
        ("buffers", [one.id for one in manifest.buffers]),
        ("functions", [one.name for one in manifest.functions]),
    ):
        for name in _repeated(names):
            yield Problem("bundle.repeated-name", f"`{name}` stands twice", f".{part}")
    for name, table in manifest.tables.items():
        if not 1 <= table.rows <= manifest.model.vocabulary:
            message = f"table `{name}` has {table.rows} rows for {manifest.model.vocabulary} tokens"
            yield Problem("bundle.shapes-disagree", message, f".tables[{name!r}].rows")


def _buffers(manifest: Manifest) -> Iterator[Problem]:
    """Each buffer has a layer's keys or values in each row, which fit into it."""
    known: set[tuple[int, str]] = set()
    for i, one in enumerate(manifest.buffers):
        yield from (found.at(f".buffers[{i}]") for found in _buffer(one, manifest.model.layers))
        for row in one.rows:
            if (row.layer, row.holds) in known:
                message = f"the {row.holds} of layer {row.layer} stands in two rows"
                yield Problem("bundle.repeated-name", message, f".buffers[{i}].rows")
            known.add((row.layer, row.holds))


def _buffer(one: Buffer, layers: int) -> Iterator[Problem]:
    if min(one.shape) < 1 or len(one.rows) != one.shape[0]:
        message = f"buffer `{one.id}` of {one.shape} holds {len(one.rows)} layers"
        yield Problem("bundle.shapes-disagree", message, ".shape")
    for at, row in enumerate(one.rows):
        asked = row.heads, row.slots, row.width
        if min(asked) < 1 or any(n > most for n, most in zip(asked, one.shape[1:], strict=True)):
            message = f"a row of {asked} does not fit buffer `{one.id}` of {one.shape}"
            yield Problem("bundle.shapes-disagree", message, f".rows[{at}]")
        if not 0 <= row.layer < layers or (row.window is not None and row.window < 1):
            message = f"a row is of layer {row.layer} and window {row.window} of {layers} layers"
            yield Problem("bundle.shapes-disagree", message, f".rows[{at}]")


def _per_layer(manifest: Manifest, made: PerLayer) -> Iterator[Problem]:
    """The tables that per-layer vectors are made of, in the widths that meet."""
    widths = {"embedding": manifest.model.hidden, "rows": made.layers * made.width}
    for part, width in widths.items():
        name: str = getattr(made, part)
        table = manifest.tables.get(name)
        if table is None:
            yield unknown("table", name, f".{part}")
        elif table.width != width:
            message = f"table `{name}` is {table.width} wide and {width} is meant"
            yield Problem("bundle.shapes-disagree", message, f".{part}")
    if made.layers != manifest.model.layers or made.width < 1:
        message = f"vectors of {made.layers} × {made.width} for {manifest.model.layers} layers"
        yield Problem("bundle.shapes-disagree", message, ".layers")
    for part in ("eps", "projection_factor", "combined_factor"):
        factor: float = getattr(made, part)
        if not (isfinite(factor) and factor > 0):
            message = f"the {part} is {factor}, not above zero"
            yield Problem("bundle.scale", message, f".{part}")


def _steps(manifest: Manifest, function: Function) -> Iterator[Problem]:
    """Inputs that nothing gives, features that don't fit their source or sink."""
    scope = Scope(manifest, function)
    for j, step in enumerate(function.steps):
        for kind, features in (("inputs", step.inputs), ("outputs", step.outputs)):
            for name in _repeated([one.feature for one in features]):
                message = f"feature `{name}` stands twice"
                yield Problem("bundle.repeated-name", message, f".steps[{j}].{kind}")
        for k, one in enumerate(step.inputs):
            for found in of_input(one, scope):
                yield found.at(f".steps[{j}].inputs[{k}]")
        for k, made in enumerate(step.outputs):
            for found in of_output(made, scope):
                yield found.at(f".steps[{j}].outputs[{k}]")
