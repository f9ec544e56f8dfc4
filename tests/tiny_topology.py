"""Tiny topologies of a tiny Gemma 3: from text to programs, packages and numbers."""

from pathlib import Path

import torch
from attrs import evolve, field, frozen
from tiny_checkpoint import tiny

from topoc.dsl.load import load
from topoc.lowering.interpret.reference import evaluate
from topoc.lowering.package import prepare, write_description
from topoc.lowering.stored import Rounded
from topoc.lowering.weight_file import Constants

torch.set_num_threads(1)

LAYERS = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
# 40 channels, so that records of weights need padding
SMALL = {"hidden_size": 40, "intermediate_size": 48, "head_dim": 16, "sliding_window": 6}
WHOLE = "chunk whole = L0-3 + norm + head(argmax)"
HALVES = "chunk one = L0-1\n  chunk two = L2-3 + norm + head(argmax)"
BOTH = "functions decode, prefill(tokens = 5)"


def load_tiny(folder: Path, body=BOTH, *, chunks=WHOLE, context=16, **config):
    """The topology of a text and the architecture of the config beside it."""
    found = tiny(folder, **(LAYERS | SMALL | config))
    file = folder / "tiny.topo"
    head = f'model "config.json"\n  target ane ios18 a17\n  context {context}'
    file.write_text(f"topology tiny {{\n  {head}\n  {body}\n  {chunks}\n}}\n")
    topology, findings = load(file)
    assert topology is not None, [(one.code, one.message) for one in findings]
    return topology, found


def without_post_norms(architecture):
    """The same model, but for the norms that end its branches."""
    return evolve(
        architecture, norms=evolve(architecture.norms, post_attention=False, post_mlp=False)
    )


def without_query_norms(architecture):
    """The same model, but for the norms of queries and keys."""
    return evolve(architecture, norms=evolve(architecture.norms, query_key=False))


@frozen
class Place:
    """Where a checkpoint that was drawn is."""

    path: Path = Path("drawn")


@frozen
class Drawn:
    """A checkpoint in memory, drawn out of the roles' names; like `checkpoint.Weights`."""

    shapes: dict[str, tuple[int, ...]]
    reader: Place = field(factory=Place)

    @classmethod
    def of(cls, *programs):
        """What programs need; of a tensor that is used in runs of rows, as far as they reach."""
        shapes: dict[str, tuple[int, ...]] = {}
        for weight in (w for program in programs for w in program.weights):
            rows, *rest = weight.type.shape
            rows = max(rows + (weight.first or 0), shapes.get(weight.role, (0,))[0])
            shapes[weight.role] = (rows, *rest)
        return cls(shapes)

    @property
    def names(self):
        return {role: role for role in self.shapes}

    def whole(self, role):
        """One tensor."""
        shape = self.shapes[role]
        stream = torch.Generator().manual_seed(sum(map(ord, role)) + len(role))
        values = torch.randn(shape, generator=stream)
        return values * 0.2 if len(shape) == 1 else values * shape[1] ** -0.5

    def rows(self, role, start, stop):
        return self.whole(role)[start:stop]

    def blocks(self, role, *, run=None, **_):
        """In two blocks, where there are two rows."""
        values = self.whole(role) if run is None else self.whole(role)[slice(*run)]
        half = (len(values) + 1) // 2
        yield from (block for block in (values[:half], values[half:]) if len(block))

    def fetch(self, weight, kind=torch.float32):
        """A weight with its recipe, rounded once."""
        first = weight.first or 0
        rows = self.rows(weight.role, first, first + weight.type.shape[0])
        return ((rows + weight.offset) * weight.factor).to(kind).float()


def write_package(programs, drawn, path, dtype, *, told=lambda _: None):
    """Emit programs as one package."""
    from topoc.lowering.emit.mil import emit

    emission, constants = emit(programs, dtype=dtype), Constants(Rounded(drawn, told))
    model = emission.serialised(constants.values, {"made": "by a test"})
    constants.write(emission.records, prepare(path))
    write_description(path, model)
    return path


def package_bytes(path):
    """The bytes of each file of a package."""
    files = (one for one in sorted(path.rglob("*")) if one.is_file())
    return {str(one.relative_to(path)): one.read_bytes() for one in files}


def fed(one, seed=0):
    """A tensor for an input, the same for the same source whatever its scale."""
    source, shape = evolve(one.source, scale=1.0), one.value.shape
    stream = torch.Generator().manual_seed(seed + sum(map(ord, repr(source))))
    if source.kind == "tokens":
        return torch.randint(0, 90, shape, generator=stream, dtype=torch.int32)
    if source.kind in {"slot", "last_row"}:
        hot = torch.zeros(shape)
        hot.view(-1)[-1 if source.kind == "last_row" else shape[2] // 2] = 1.0
        return hot
    drawn = torch.randn(shape, generator=stream)
    if source.kind == "mask":
        return torch.where(drawn > 0.5, source.fill or 0.0, 0.0)
    return drawn * one.source.scale if source.kind == "embedding" else drawn


def run_chain(programs, drawn):
    """One call through the chunks: every output by its sink, with scales taken out."""
    between, out = {}, {}
    for program in programs:
        inputs = {
            one.value: between[one.source.name][0] if one.source.kind == "value" else fed(one)
            for one in program.inputs
        }
        for one in program.inputs:
            if one.source.kind == "value":
                assert one.source.scale == between[one.source.name][1]
        values = evaluate(program, inputs, drawn.fetch)
        for one in program.outputs:
            tensor = values[one.value]
            if one.sink.kind == "value":
                between[one.sink.name] = (tensor, one.sink.scale)
            key = (one.sink.kind, one.sink.name)
            out[key] = tensor if one.sink.kind == "token" else tensor / one.sink.scale
            if one.sink.probe:
                (found,) = (t for value, t in values.items() if value.name == one.sink.probe)
                out[key, "probe"] = found
    return out
