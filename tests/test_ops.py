"""Each op: one emitter, one meaning, and both agree after a package was written and read."""

import importlib
import pkgutil
import typing
from inspect import isabstract

import attrs
import pytest
import torch
from tiny_topology import Drawn, write_package

import topoc.lowering.emit.mil
import topoc.lowering.ops
import topoc.lowering.passes
from topoc.lowering import ir, manifest
from topoc.lowering.emit.mil import emitters
from topoc.lowering.interpret.machine import Machine
from topoc.lowering.interpret.package import Package
from topoc.lowering.interpret.reference import MEANINGS, evaluate
from topoc.lowering.ir import Binding, DType, Input, Op, Output, Program, TensorType, Value, Weight
from topoc.lowering.manifest import Sink, Source
from topoc.lowering.ops import ALL_OPS
from topoc.lowering.ops.attention import Attention, TiledAttention
from topoc.lowering.ops.cache import (
    AppendRows,
    BlendIn,
    CacheRow,
    PadRow,
    ShiftIn,
    StackRows,
    StateRow,
    WriteState,
)
from topoc.lowering.ops.elementwise import Activation, Add, Copy, Mul, Scale, ScaleBy, Softcap
from topoc.lowering.ops.feature import FromTokens, Greatest, Keep, ToTokens, View
from topoc.lowering.ops.head import Argmax, SelectToken, TopK
from topoc.lowering.ops.heads import (
    Channels,
    JoinChannels,
    JoinHeads,
    MergeHeads,
    Rope,
    SplitHeads,
    TokenRows,
)
from topoc.lowering.ops.linear import Embed, Linear
from topoc.lowering.ops.norm import RmsNorm, UnitRmsNorm
from topoc.lowering.ops.quantize import QuantizeDequantize
from topoc.lowering.text import parse, show
from topoc.lowering.verify import verify


def modules(package):
    """A package's modules."""
    found = pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    return [importlib.import_module(one.name) for one in found]


def classes(module):
    """The attrs classes that a module defines and offers."""
    return [
        one
        for name, one in vars(module).items()
        if isinstance(one, type)
        and attrs.has(one)
        and one.__module__ == module.__name__
        and not name.startswith("_")
    ]


OP_MODULES = modules(topoc.lowering.ops)
VALUES = [*OP_MODULES, *modules(topoc.lowering.passes), ir, manifest]
FROZEN = [one for module in VALUES for one in classes(module) if not isabstract(one)]


def test_every_op_that_a_file_defines_is_in_all_ops_once():
    defined = [one for module in OP_MODULES for one in classes(module) if issubclass(one, Op)]
    assert sorted(map(repr, defined)) == sorted(map(repr, ALL_OPS))
    assert len({one.mnemonic for one in ALL_OPS}) == len(ALL_OPS)


def test_every_op_has_one_emitter_in_the_file_of_its_name():
    assert emitters().keys() == set(ALL_OPS)
    for op, emitter in emitters().items():
        assert emitter.__module__.rpartition(".")[2] == op.__module__.rpartition(".")[2]


def test_a_second_emitter_of_an_op_is_refused():
    from topoc.lowering.emit.mil.environment import emits

    with pytest.raises(AssertionError, match="add has an emitter already"):
        emits(Add)(lambda _op, _env: None)


def test_every_op_has_one_meaning():
    assert MEANINGS.keys() == set(ALL_OPS)


@pytest.mark.parametrize("kind", FROZEN, ids=lambda one: one.__name__)
def test_values_do_not_change(kind):
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        object.__new__(kind).anything = 1
    if kind is manifest.Manifest:
        return
    hints = typing.get_type_hints(kind)
    for one in attrs.fields(kind):
        assert not {"list", "dict", "set"} & set(_named(hints[one.name])), one.name


def _named(hint):
    yield getattr(typing.get_origin(hint) or hint, "__name__", "")
    for inner in typing.get_args(hint):
        if not isinstance(inner, str):
            yield from _named(inner)


def value(name, *shape, dtype=DType.FP32):
    return Value(name, TensorType(dtype, shape))


def weight(role, *shape, **recipe):
    return Weight(role, TensorType(DType.FP32, shape), **recipe)


def norm(*shape, axis=1, eps=1e-6):
    gain = weight("gain", shape[axis], offset=1.0, factor=0.5)
    return RmsNorm(value("x", *shape), gain, eps, axis)


def linear(inner, outer, tokens, **recipe):
    return Linear(value("x", 1, inner, 1, tokens), weight("w", outer, inner, **recipe))


def embed(tokens, rows=11, width=6):
    return Embed(value("ids", 1, tokens, dtype=DType.INT32), weight("table", rows, width))


def rope(heads, width, tokens):
    angles = (value(name, 1, 1, width, tokens) for name in ("cos", "sin"))
    return Rope(value("x", 1, heads, width, tokens), *angles)


def attention(heads, groups, tokens, slots, width, *, scale=20**-0.5):
    k, v = (value(name, 1, groups, slots, width) for name in "kv")
    mask = value("mask", 1, 1, tokens, slots)
    return Attention(value("q", 1, heads, tokens, width), k, v, mask, scale)


def tiled(heads, groups, tokens, slots, width, *, tile, **options):
    whole = attention(heads, groups, tokens, slots, width, **options)
    return TiledAttention(whole.q, whole.k, whole.v, whole.mask, whole.scale, tile)


def shift(heads, slots, width, tokens=1):
    new = value("new", 1, heads, tokens, width)
    return ShiftIn(value("cache", 1, heads, slots, width), new)


def blend(heads, slots, width, tokens=1):
    new = value("new", 1, heads, tokens, width)
    slot = value("slot", 1, 1, slots, tokens)
    return BlendIn(value("cache", 1, heads, slots, width), new, slot)


def write(state, new, row, *, indexed=True):
    index = (value("index", 1, dtype=DType.INT32),) if indexed else ()
    return WriteState(value("kept", *state), value("new", *new), row, index)


def join(*channels, tokens=1):
    parts = (value(f"part{at}", 1, one, 1, tokens) for at, one in enumerate(channels))
    return JoinChannels(tuple(parts))


def append(heads, slots, tokens, width):
    return AppendRows(value("cache", 1, heads, slots, width), value("new", 1, heads, tokens, width))


def stack(rows, *shape):
    return StackRows(tuple(value(f"row{at}", 1, *shape) for at in range(rows)))


def select(channels, tokens):
    return SelectToken(value("x", 1, channels, 1, tokens), value("selector", 1, 1, 1, tokens))


def pair(kind, *shape):
    return kind(value("x", *shape), value("y", *shape))


CASES = [
    *(embed(tokens) for tokens in (1, 3)),
    embed(4, rows=5, width=1),
    Scale(value("x", 1, 8, 1, 3), 640**0.5),
    Scale(value("x", 1, 8, 1, 1), 0.125),
    *(norm(1, 12, 1, tokens) for tokens in (1, 3)),
    *(QuantizeDequantize(value("x", 1, 12, 1, 3), scale) for scale in (2.0**-7, 0.5, 3.0)),
    norm(1, 4, 6, 3, axis=2),
    norm(1, 1, 16, 1, axis=2, eps=0.0),
    norm(1, 5, 1, 2, eps=0.3),
    *(UnitRmsNorm(value("x", 1, 2, 6, t), 1e-6, 2) for t in (1, 3)),
    UnitRmsNorm(value("x", 1, 12, 1, 2), 0.3, 1),
    *(linear(12, 7, tokens) for tokens in (1, 3)),
    linear(3, 2, 1, factor=0.25, offset=0.5),
    linear(2, 1, 5),
    *(SplitHeads(value("x", 1, 12, 1, tokens), heads) for tokens in (1, 3) for heads in (1, 2, 4)),
    *(JoinHeads(value("x", 1, heads, 6, t)) for heads, t in ((1, 1), (2, 3), (4, 1))),
    *(Channels(value("x", 1, 12, 1, t), 0, 12) for t in (1, 3)),
    *(Channels(value("x", 1, 12, 1, 2), first, 4) for first in (0, 5, 8)),
    *(join(*channels, tokens=2) for channels in ((3,), (3, 5), (1, 1, 4))),
    *(rope(heads, width, t) for heads, width, t in ((4, 6, 1), (1, 8, 3), (3, 2, 5))),
    *(TokenRows(value("x", 1, heads, 6, t)) for heads, t in ((1, 1), (2, 3), (4, 1))),
    *(CacheRow(value("c", 3, 2, 5, 8), row, 2, 8) for row in (0, 1, 2)),
    CacheRow(value("c", 1, 2, 5, 8), 0, 2, 8),
    *(
        CacheRow(value("c", 3, 4, 5, 8), 1, heads, width)
        for heads, width in ((1, 8), (4, 6), (2, 2))
    ),
    *(shift(*shape) for shape in ((1, 5, 4), (2, 2, 3), (3, 7, 1), (2, 1, 4))),
    *(shift(2, slots, 4, tokens) for slots, tokens in ((6, 2), (6, 5), (6, 6), (6, 7), (1, 3))),
    *(blend(*shape) for shape in ((1, 5, 4), (2, 3, 8), (2, 1, 3))),
    *(blend(*shape) for shape in ((1, 5, 4, 2), (2, 6, 3, 6), (3, 1, 2, 2))),
    *(StateRow(value("kept", 3, 2, 5, 8), row, 2, 5, 8) for row in (0, 2)),
    StateRow(value("kept", 4, 3, 6, 8), 1, 2, 4, 6),
    StateRow(value("kept", 1, 1, 1, 2), 0, 1, 1, 2),
    *(write((3, 2, 5, 8), (1, 2, tokens, 8), row) for tokens in (1, 2) for row in (0, 2)),
    write((4, 3, 6, 8), (2, 2, 2, 5), 1),
    write((3, 2, 5, 8), (1, 2, 5, 8), 1, indexed=False),
    *(write((1, 2, 5, 8), (1, 2, 2, 8), 0, indexed=one) for one in (True, False)),
    write((3, 2, 5, 8), (1, 1, 3, 4), 2, indexed=False),
    write((1, 2, 5, 8), (1, 2, 5, 8), 0, indexed=False),
    write((1, 2, 5, 8), (1, 2, 5, 8), 0),
    *(append(*shape) for shape in ((1, 5, 1, 4), (2, 5, 3, 4), (2, 1, 7, 3))),
    *(PadRow(value("x", 1, 2, 5, 4), heads, width) for heads in (2, 3) for width in (4, 7)),
    *(PadRow(value("x", 1, 1, 1, 2), heads, width) for heads in (1, 4) for width in (2, 3)),
    *(attention(4, 1, t, 5, 6) for t in (1, 3)),
    *(attention(4, 2, t, 6, 4) for t in (1, 3)),
    attention(2, 2, 1, 3, 8, scale=1.0),
    attention(6, 3, 5, 9, 2),
    attention(1, 1, 2, 1, 2),
    *(tiled(4, 2, t, 10, 6, tile=tile) for t in (1, 3) for tile in (1, 3, 5, 9, 10, 64)),
    tiled(6, 3, 2, 9, 2, tile=4, scale=1.0),
    tiled(2, 2, 1, 1, 8, tile=1),
    *(MergeHeads(value("x", 1, heads, t, 6)) for heads, t in ((1, 1), (2, 3), (4, 1), (4, 3))),
    *(pair(kind, *shape) for kind in (Add, Mul) for shape in ((1, 6, 1, 1), (1, 6, 1, 3))),
    *(Copy(value("x", *shape)) for shape in ((1, 6, 1, 1), (1, 6, 1, 3))),
    *(ScaleBy(value("x", 1, 6, 1, t), weight("number", 1)) for t in (1, 3)),
    ScaleBy(value("x", 1, 6, 1, 1), weight("number", 1, offset=1.0, factor=0.5)),
    *(Activation(value("x", 1, 6, 1, t), kind) for kind in ("gelu_tanh", "silu") for t in (1, 3)),
    *(stack(rows, 2, t, 4) for rows in (1, 2, 3) for t in (1, 3)),
    *(select(6, t) for t in (1, 2, 5)),
    Softcap(value("x", 1, 9, 1, 1), 30.0),
    Softcap(value("x", 1, 9, 1, 2), 0.5),
    *(Argmax(value("x", 1, 13, 1, t)) for t in (1, 3)),
    *(TopK(value("x", 1, 13, 1, t), k) for t in (1, 3) for k in (1, 4, 13)),
    *(FromTokens(value("x", 1, t, 6)) for t in (1, 3)),
    *(ToTokens(value("x", 1, 6, 1, t)) for t in (1, 3)),
    *(View(value("x", 1, 1, 1, t), shape) for t, shape in ((1, (1,)), (3, (1, 3)))),
    *(Greatest(value("x", 1, 13, 1, t)) for t in (1, 3)),
    *(Keep(value("x", 1, 1, 5, t)) for t in (1, 3)),
]


EXACT = {
    SplitHeads, TokenRows, MergeHeads, JoinHeads, Channels, JoinChannels, Copy, SelectToken,
    CacheRow, StackRows, PadRow, AppendRows, ShiftIn, BlendIn, StateRow, WriteState,
    FromTokens, ToTokens, View, Greatest, Keep,
}  # fmt: skip
"""What only moves values about."""


def label(op):
    shapes = [operand.shape for operand in op.operands]
    return f"{op.mnemonic}-{'_'.join('x'.join(map(str, shape)) for shape in shapes)}"


def test_every_op_has_several_cases():
    for kind in ALL_OPS:
        assert sum(type(case) is kind for case in CASES) > 1, kind


def typed(op, dtype, at):
    """The op over operands and weights of a float type; its weights are its own."""

    def retyped(one):
        if isinstance(one, tuple):
            return tuple(map(retyped, one))
        if isinstance(one, Weight):
            one = attrs.evolve(one, role=f"{one.role}{at}")
        if isinstance(one, Value) and one.name == "kept":
            one = attrs.evolve(one, name=f"kept{at}")
        if isinstance(one, Value | Weight) and one.type.dtype is not DType.INT32:
            return attrs.evolve(one, type=attrs.evolve(one.type, dtype=dtype))
        return one

    fields = {one.name: retyped(getattr(op, one.name)) for one in attrs.fields(type(op))}
    return attrs.evolve(op, **fields)


def program_of(op, name="main"):
    """The op alone; of a write into a state, a read of all of it is what comes out."""
    results = tuple(Value(f"out{at}", one) for at, one in enumerate(op.result_types()))
    inputs = tuple(Input(one, source_of(one, name)) for one in op.operands)
    bindings = (Binding(results, op),)
    if isinstance(op, WriteState):
        (state,) = results
        reads = [StateRow(state, row, *state.shape[1:]) for row in range(state.shape[0])]
        results = tuple(Value(f"row{at}", one.result_type()) for at, one in enumerate(reads))
        bindings += tuple(Binding((one,), op) for one, op in zip(results, reads, strict=True))
    outputs = tuple(Output(one, Sink(kind="value", name=one.name)) for one in results)
    return Program(name, inputs, bindings, outputs)


def source_of(one, function):
    """States of a package are the same ones in all of its functions, so each has its own."""
    if one.name.startswith("kept"):
        return Source(kind="state", name=f"{function}_{one.name}")
    return Source(kind="value", name=one.name)


def drawn_inputs(op, dtype):
    stream = torch.Generator().manual_seed(sum(map(ord, repr(op))) + len(repr(op)))
    return {one: _drawn(one, op, stream, dtype) for one in op.operands}


def _drawn(one, op, stream, dtype):
    if one.type.dtype is DType.INT32:
        rows = op.table.type.shape[0] if isinstance(op, Embed) else _places(op)
        return torch.randint(0, rows, one.shape, generator=stream).int()
    if one.name == "slot":
        return one_hot_columns(*one.shape[2:])
    if one.name == "selector":
        hot = torch.zeros(one.shape)
        hot.view(-1)[hot.numel() // 2] = 1.0
        return hot
    drawn = torch.randn(one.shape, generator=stream)
    if one.name == "mask":
        return torch.where(drawn > 0.6, -1e4, 0.0)
    return drawn.half().float() if dtype is DType.FP16 else drawn


def _places(op):
    """Where a write into a state may begin."""
    return op.state.shape[2] - op.new.shape[2] + 1


def one_hot_columns(slots, tokens):
    """A slot for each row, from the middle on and around the end; padding where none is left."""
    hot = torch.zeros(1, 1, slots, tokens)
    for row in range(min(slots, tokens)):
        hot[0, 0, (slots // 2 + row) % slots, row] = 1.0
    return hot


def agree(found, wanted, tolerance):
    assert found.shape == wanted.shape
    if wanted.dtype == torch.int32:
        assert found.dtype == torch.int32
        assert torch.equal(found, wanted)
        return
    size = wanted.abs().max().clamp_min(1e-3)
    assert ((found - wanted).abs().max() / size).item() <= tolerance


@pytest.fixture(scope="module", params=[DType.FP32, DType.FP16], ids=lambda one: one.value)
def emitted(request, tmp_path_factory):
    """All cases as functions of one package."""
    dtype = request.param
    programs = [program_of(typed(op, dtype, at), f"op{at}") for at, op in enumerate(CASES)]
    for program in programs:
        verify(program)
    drawn = Drawn.of(*programs)
    path = tmp_path_factory.mktemp("ops") / "ops.mlpackage"
    write_package(tuple(programs), drawn, path, dtype)
    return Package(path), programs, drawn, dtype


@pytest.mark.parametrize("at", range(len(CASES)), ids=lambda at: f"{at}-{label(CASES[at])}")
def test_what_is_emitted_means_what_the_reference_says(emitted, at):
    package, programs, drawn, dtype = emitted
    program = programs[at]
    inputs = drawn_inputs(program.bindings[0].op, dtype)
    kind = torch.float16 if dtype is DType.FP16 else torch.float32
    wanted = evaluate(program, inputs, lambda weight: drawn.fetch(weight, kind))
    machine = Machine(package, program.name)
    states = {one.name: inputs.pop(one) for one in [*inputs] if one.name.startswith("kept")}
    found = machine.run({one.name: tensor for one, tensor in inputs.items()}, states=states)
    near = 1e-5 if dtype is DType.FP32 else 1e-3
    exact = type(program.bindings[0].op) in EXACT
    for one in program.outputs:
        agree(found[one.value.name], wanted[one.value], 0.0 if exact else near)


def meant(op, **inputs):
    """What the reference makes of an op."""
    program = program_of(op)
    fetch = {"number": torch.tensor([3.0])}
    values = evaluate(
        program, {one: inputs[one.name] for one in op.operands}, lambda weight: fetch[weight.role]
    )
    return values[program.outputs[0].value]


def counted(*shape):
    return torch.arange(1.0, torch.tensor(shape).prod() + 1).reshape(shape)


def test_rows_take_the_slots_of_their_columns_and_padding_none():
    cache, new = counted(1, 2, 5, 3), -counted(1, 2, 3, 3)
    slot = torch.zeros(1, 1, 5, 3)
    slot[0, 0, 4, 0] = slot[0, 0, 1, 1] = 1.0  # the third row is padding
    wanted = cache.clone()
    wanted[:, :, 4], wanted[:, :, 1] = new[:, :, 0], new[:, :, 1]
    assert torch.equal(meant(blend(2, 5, 3, 3), cache=cache, new=new, slot=slot), wanted)


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 6, 9])
def test_the_newest_rows_are_last_after_a_shift(tokens):
    cache, new = counted(1, 2, 5, 3), -counted(1, 2, tokens, 3)
    rows = [*cache.unbind(2), *new.unbind(2)][-5:]
    found = meant(shift(2, 5, 3, tokens), cache=cache, new=new)
    assert torch.equal(found, torch.stack(rows, 2))


def test_a_unit_norm_leaves_a_mean_square_of_one():
    x = counted(1, 2, 6, 3)
    found = meant(UnitRmsNorm(value("x", 1, 2, 6, 3), 0.0, 2), x=x)
    assert torch.allclose(found.square().mean(2), torch.ones(1, 2, 3))
    assert torch.allclose(found, torch.nn.functional.rms_norm(x.mT, (6,), eps=0.0).mT)


def test_channels_part_and_join():
    x = counted(1, 12, 1, 2)
    parts = [meant(Channels(value("x", 1, 12, 1, 2), at, 4), x=x) for at in (0, 4, 8)]
    assert [one.flatten()[0].item() for one in parts] == [1.0, 9.0, 17.0]
    again = meant(join(4, 4, 4, tokens=2), part0=parts[0], part1=parts[1], part2=parts[2])
    assert torch.equal(again, x)


def test_heads_split_and_join():
    x = counted(1, 12, 1, 2)
    heads = meant(SplitHeads(value("x", 1, 12, 1, 2), 3), x=x)
    assert torch.equal(meant(JoinHeads(value("x", 1, 3, 4, 2)), x=heads), x)


def test_a_number_of_the_checkpoint_scales_everything():
    op = ScaleBy(value("x", 1, 6, 1, 2), weight("number", 1))
    assert torch.equal(meant(op, x=counted(1, 6, 1, 2)), counted(1, 6, 1, 2) * 3)


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_blend_is_exact_in_fp16_whatever_the_cache_holds(tokens, tmp_path):
    op = typed(blend(2, 5, 4, tokens), DType.FP16, 0)
    path = tmp_path / "p.mlpackage"
    write_package((program_of(op),), Drawn({}), path, DType.FP16)
    inputs = {name: one for one, name in zip(wild(op), ("cache", "new"), strict=True)}
    inputs["slot"] = one_hot_columns(5, tokens)
    inputs["slot"][..., -1] = 0.0  # padding
    found = Machine(path, rounding=True).run(inputs)["out0"]
    assert torch.equal(found, meant(op, **inputs))
    assert torch.equal(found[:, :, 0], inputs["cache"][:, :, 0])


def wild(op):
    stream = torch.Generator().manual_seed(0)
    for one in (op.cache, op.new):
        yield (torch.randn(one.shape, generator=stream) * 2e4).half().float()


@pytest.mark.parametrize("at", range(len(CASES)), ids=lambda at: f"{at}-{label(CASES[at])}")
def test_every_op_prints_and_reads_back(at):
    program = program_of(CASES[at])
    assert parse(show(program)) == program


def test_an_epsilon_that_fp16_does_not_hold_still_keeps_zeros_finite(tmp_path):
    program = program_of(typed(norm(1, 8, 1, 2, eps=1e-9), DType.FP16, 0))
    path = tmp_path / "p.mlpackage"
    write_package((program,), Drawn.of(program), path, DType.FP16)
    for rounding in (False, True):
        found = Machine(path, rounding=rounding).run({"x": torch.zeros(1, 8, 1, 2)})
        assert torch.equal(found["out0"], torch.zeros(1, 8, 1, 2))


def test_every_input_and_state_is_read(emitted):
    package, programs, _, _ = emitted
    for program in programs:
        function = package.function(program.name)
        read = {one for op in function.ops for many in op.inputs.values() for one in many}
        assert read.issuperset(one.name for one in (*function.inputs, *function.states))


def test_no_emitted_tensor_is_empty(emitted):
    package, programs, _, _ = emitted
    for program in programs:
        for op in package.function(program.name).ops:
            for one in op.outputs:
                assert min(one.shape, default=1) >= 1, (label(program.bindings[0].op), one)
