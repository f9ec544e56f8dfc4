"""Where a manifest disagrees with itself: names that nobody defines, shapes that don't meet."""

from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import field, frozen

from topoc.dsl.diagnostic import Diagnostic, Place, error
from topoc.lowering.bundle.fitting import Problem, Scope, of_input, of_output
from topoc.lowering.manifest import Buffer, Function, Manifest

REMEDY = "compile the bundle again"


def disagreements(manifest: Manifest, path: str) -> Iterator[Diagnostic]:
    """Every disagreement, with the field where it stands."""
    for found in (*_whole(manifest), *_buffers(manifest.buffers)):
        yield _told(found, path, "$")
    for i, function in enumerate(manifest.functions):
        walk = _Walk(manifest, function)
        for found in (*walk.steps(), *walk.writes()):
            yield _told(found, path, f"$.functions[{i}]")


def _told(found: Problem, path: str, root: str) -> Diagnostic:
    return error(found.code, found.message, Place(path, root + found.part), help=REMEDY)


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _whole(manifest: Manifest) -> Iterator[Problem]:
    """Names that stand once, roles that fit, host tables of the model's vocabulary."""
    if not manifest.functions:
        yield Problem("bundle.no-function", "the bundle has no function", ".functions")
    for part, names in (
        ("buffers", [one.id for one in manifest.buffers]),
        ("functions", [one.name for one in manifest.functions]),
    ):
        for name in _repeated(names):
            yield Problem("bundle.repeated-name", f"`{name}` stands twice", f".{part}")
    for name, table in manifest.tables.items():
        if table.rows != manifest.model.vocabulary:
            message = f"table `{name}` has {table.rows} rows for {manifest.model.vocabulary} tokens"
            yield Problem("bundle.shapes-disagree", message, f".tables[{name!r}].rows")
    for i, one in enumerate(manifest.functions):
        if one.tokens < 1 or (one.role == "decode" and one.tokens != 1):
            message = f"`{one.name}` is a {one.role} of {one.tokens} tokens"
            yield Problem("bundle.shapes-disagree", message, f".functions[{i}].tokens")


def _buffers(buffers: tuple[Buffer, ...]) -> Iterator[Problem]:
    """Each buffer has positive dimensions and one layer a row."""
    for i, one in enumerate(buffers):
        if min(one.shape) < 1 or len(one.layers) != one.shape[0]:
            message = f"buffer `{one.id}` of {one.shape} holds {len(one.layers)} layers"
            yield Problem("bundle.shapes-disagree", message, f".buffers[{i}].shape")


@frozen
class _Walk:
    """One function's steps in order, and what each leaves for the next ones."""

    manifest: Manifest
    function: Function
    written: Counter[str] = field(factory=Counter, init=False)

    def steps(self) -> Iterator[Problem]:
        """Inputs that nothing gives, features that don't fit their source or sink."""
        scope = Scope(self.manifest, self.function)
        for j, step in enumerate(self.function.steps):
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
                if made.sink.kind in {"buffer", "rows"}:
                    self.written[str(made.sink.name)] += 1

    def writes(self) -> Iterator[Problem]:
        """Every call leaves every buffer with its new rows, exactly once."""
        for buffer in self.manifest.buffers:
            times = self.written[buffer.id]
            if times != 1:
                message = f"`{self.function.name}` writes buffer `{buffer.id}` {times} times"
                yield Problem("bundle.buffer-writes", message, ".steps")
