"""States: shared by the functions of a package, written slot by slot, read afresh afterwards."""

from collections import Counter

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from test_emit import MODEL, WEIGHTS, as_coremltools_would
from tiny_topology import Drawn, write_package

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.interpret.machine import Machine
from topoc.lowering.interpret.package import Package
from topoc.lowering.interpret.reference import evaluate
from topoc.lowering.ir import Binding, DType, Input, Output, TensorType, Value, Weight
from topoc.lowering.manifest import Sink, Source
from topoc.lowering.ops.attention import TiledAttention
from topoc.lowering.ops.cache import WriteState
from topoc.lowering.ops.elementwise import ScaleBy
from topoc.lowering.ops.heads import JoinChannels
from topoc.lowering.ops.linear import Linear
from topoc.lowering.ops.norm import UnitRmsNorm
from topoc.lowering.text import parse
from topoc.lowering.verify import MalformedProgramError, verify, verify_together

HEADS, SLOTS, WIDTH, TOKENS = 2, 5, 4, 3
SHAPE = (3, HEADS, SLOTS, WIDTH)  # rows 0 and 1 by slot, row 2 by shifts
DECODE = """\
program decode(
  %k: fp16[1,2,1,4] = value(name=k),
  %v: fp16[1,2,1,4] = value(name=v),
  %index: int32[1] = index(name=kv, slots=5, rule=modulo),
  %kv: fp16[3,2,5,4] = state(name=cache)
) {
  %kv_k: fp16[3,2,5,4] = write_state(state=%kv, new=%k, row=0, index=[%index])
  %kv_v: fp16[3,2,5,4] = write_state(state=%kv_k, new=%v, row=1, index=[%index])
  %k_seen: fp16[1,2,5,4] = state_row(state=%kv_v, row=0, heads=2, slots=5, width=4)
  %v_seen: fp16[1,2,5,4] = state_row(state=%kv_v, row=1, heads=2, slots=5, width=4)
  return %k_seen -> value(name=k_seen)
  return %v_seen -> value(name=v_seen)
}
"""
PREFILL = """\
program prefill_3(
  %k: fp16[1,2,3,4] = value(name=k),
  %index: int32[1] = index(name=kv, slots=5, rule=modulo),
  %kv: fp16[3,2,5,4] = state(name=cache)
) {
  %k_old: fp16[1,2,5,4] = state_row(state=%kv, row=0, heads=2, slots=5, width=4)
  %kv_k: fp16[3,2,5,4] = write_state(state=%kv, new=%k, row=0, index=[%index])
  %k_all: fp16[1,2,8,4] = append_rows(cache=%k_old, new=%k)
  %k_seen: fp16[1,2,5,4] = state_row(state=%kv_k, row=0, heads=2, slots=5, width=4)
  return %k_all -> value(name=k_all)
  return %k_seen -> value(name=k_seen)
}
"""
SHIFT = """\
program shift(
  %k: fp16[1,1,2,3] = value(name=k),
  %kv: fp16[3,2,5,4] = state(name=cache)
) {
  %k_old: fp16[1,1,4,3] = state_row(state=%kv, row=2, heads=1, slots=4, width=3)
  %k_new: fp16[1,1,4,3] = shift_in(cache=%k_old, new=%k)
  %kv_k: fp16[3,2,5,4] = write_state(state=%kv, new=%k_new, row=2, index=[])
  return %k_new -> value(name=k_new)
}
"""
LOOK = """\
program look(
  %kv: fp16[3,2,5,4] = state(name=cache)
) {
  %first: fp16[1,2,5,4] = state_row(state=%kv, row=0, heads=2, slots=5, width=4)
  %last: fp16[1,1,2,3] = state_row(state=%kv, row=2, heads=1, slots=2, width=3)
  return %first -> value(name=first)
  return %last -> value(name=last)
}
"""
OTHER = """\
program other(
  %x: fp16[2,1,3,2] = value(name=x),
  %own: fp16[2,1,3,2] = state(name=own)
) {
  %own_all: fp16[2,1,3,2] = write_state(state=%own, new=%x, row=0, index=[])
  %row: fp16[1,1,3,2] = state_row(state=%own_all, row=1, heads=1, slots=3, width=2)
  return %row -> value(name=row)
}
"""
TEXTS = (DECODE, PREFILL, SHIFT, LOOK, OTHER)
DTYPES = pytest.mark.parametrize("dtype", [DType.FP16, DType.FP32], ids=lambda one: one.value)


def programs_of(dtype, texts=TEXTS):
    found = tuple(parse(one.replace("fp16", dtype.value)) for one in texts)
    for one in found:
        verify(one)
    return found


@pytest.fixture(scope="module", params=[DType.FP16, DType.FP32], ids=lambda one: one.value)
def package(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("states") / "p.mlpackage"
    write_package(programs_of(request.param), Drawn({}), path, request.param)
    return Package(path)


MACHINES: dict[tuple[int, str, bool], Machine] = {}


def machine_of(package, name, *, rounding=False):
    key = id(package), name, rounding
    if key not in MACHINES:
        MACHINES[key] = Machine(package, name, rounding=rounding)
    return MACHINES[key]


def index(at):
    return torch.tensor([at], dtype=torch.int32)


class Plain:
    """The cache as a plain array, and each function by hand."""

    def __init__(self, numbers):
        self.cache = torch.zeros(SHAPE)
        self.numbers = numbers

    def drawn(self, *shape):
        return torch.randn(shape, generator=self.numbers).half().float()

    def decode(self, at):
        k, v = (self.drawn(1, HEADS, 1, WIDTH) for _ in "kv")
        self.cache[0, :, at], self.cache[1, :, at] = k[0, :, 0], v[0, :, 0]
        wanted = {"k_seen": self.cache[0:1], "v_seen": self.cache[1:2]}
        return {"k": k, "v": v, "index": index(at)}, wanted

    def prefill_3(self, at):
        at = min(at, SLOTS - TOKENS)
        k, old = self.drawn(1, HEADS, TOKENS, WIDTH), self.cache[0:1].clone()
        self.cache[0, :, at : at + TOKENS] = k[0]
        wanted = {"k_all": torch.cat([old, k], 2), "k_seen": self.cache[0:1]}
        return {"k": k, "index": index(at)}, wanted

    def shift(self, _):
        k, row = self.drawn(1, 1, 2, 3), self.cache[2, :1, :4, :3]
        row[:] = torch.cat([row[:, 2:], k[0]], 1)
        return {"k": k}, {"k_new": row[None]}

    def look(self, _):
        return {}, {"first": self.cache[0:1], "last": self.cache[2:3, :1, :2, :3]}

    def other(self, _):
        x = self.drawn(2, 1, 3, 2)
        return {"x": x}, {"row": x[1:2]}


CALLS = st.tuples(
    st.sampled_from(["decode", "prefill_3", "shift", "look", "other"]), st.integers(0, SLOTS - 1)
)


@pytest.mark.parametrize("rounding", [False, True], ids=["wide", "rounding"])
@given(calls=st.lists(CALLS, min_size=1, max_size=8), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_functions_share_a_state_to_the_bit(package, rounding, calls, seed):
    plain, states = Plain(torch.Generator().manual_seed(seed)), {}
    for name, at in calls:
        inputs, wanted = getattr(plain, name)(at)
        found = machine_of(package, name, rounding=rounding).run(inputs, states=states)
        assert found.keys() == wanted.keys()
        for output, tensor in wanted.items():
            assert torch.equal(found[output], tensor), (name, output)
        if "kv" in states:
            assert torch.equal(states["kv"], plain.cache)


@given(calls=st.lists(CALLS, min_size=1, max_size=8), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_reference_says_the_same(calls, seed):
    programs = {one.name: one for one in programs_of(DType.FP32)}
    plain, held = Plain(torch.Generator().manual_seed(seed)), {}
    for name, at in calls:
        program = programs[name]
        inputs, wanted = getattr(plain, name)(at)
        fed = {one.value: inputs.get(one.value.name) for one in program.inputs}
        (state,) = (one.value for one in program.inputs if one.source.kind == "state")
        fed[state] = held.get(state.name, torch.zeros(state.shape))
        values = evaluate(program, fed, None)
        written = [b.result for b in program.bindings if isinstance(b.op, WriteState)]
        held[state.name] = values[written[-1] if written else state]
        for output in program.outputs:
            assert torch.equal(values[output.value], wanted[output.value.name])
        assert torch.equal(held.get("kv", torch.zeros(SHAPE)), plain.cache)


def test_what_was_read_before_a_write_is_what_was_there(package):
    states = {"kv": torch.ones(SHAPE)}
    inputs = {"k": torch.full((1, HEADS, TOKENS, WIDTH), 7.0), "index": index(1)}
    found = machine_of(package, "prefill_3").run(inputs, states=states)
    assert torch.equal(found["k_all"][:, :, :SLOTS], torch.ones(1, HEADS, SLOTS, WIDTH))
    assert found["k_seen"][0, 0, :, 0].tolist() == [1.0, 7.0, 7.0, 7.0, 1.0]


def test_one_mapping_serves_all_functions_of_a_package(package):
    own = torch.full((2, 1, 3, 2), 5.0)
    states = {"kv": torch.ones(SHAPE), "own": own}
    machine_of(package, "look").run({}, states=states)
    assert states["own"] is own
    assert torch.equal(states["kv"], torch.ones(SHAPE))
    before = states["kv"]
    machine_of(package, "other").run({"x": torch.zeros(own.shape)}, states=states)
    assert states["kv"] is before
    assert torch.equal(states["own"], torch.zeros(own.shape))
    assert torch.equal(own, torch.full((2, 1, 3, 2), 5.0))


def test_a_state_of_no_function_is_refused(package):
    with pytest.raises(TopocError, match="`kw` is given, and the function has no such feature"):
        machine_of(package, "look").run({}, states={"kw": torch.ones(SHAPE)})


def test_a_state_is_no_input(package):
    with pytest.raises(TopocError, match="`kv` is given, and the function has no such feature"):
        machine_of(package, "look").run({"kv": torch.ones(SHAPE)})


@pytest.mark.parametrize(
    ("name", "shape", "at"),
    [
        ("decode", (1, HEADS, 1, WIDTH), SLOTS),
        ("decode", (1, HEADS, 1, WIDTH), SLOTS + 3),
        ("decode", (1, HEADS, 1, WIDTH), -1),
        ("prefill_3", (1, HEADS, TOKENS, WIDTH), SLOTS - TOKENS + 1),
        ("prefill_3", (1, HEADS, TOKENS, WIDTH), -1),
    ],
)
def test_a_write_beyond_the_slots_is_refused(package, name, shape, at):
    states, before = {"kv": torch.ones(SHAPE)}, torch.ones(SHAPE)
    inputs = {"k": torch.zeros(shape), "index": index(at)}
    if name == "decode":
        inputs["v"] = inputs["k"]
    with pytest.raises(TopocError, match=r"replaces \[\d, 0, .* of \(3, 2, 5, 4\)") as failure:
        machine_of(package, name).run(inputs, states=states)
    assert [one.code for one in failure.value.findings] == ["run.slice-outside"]
    assert torch.equal(states["kv"], before)


def test_without_rounding_a_state_holds_what_was_written(package):
    third = torch.full((1, HEADS, 1, WIDTH), 1 / 3)
    for rounding, wanted in ((False, third), (True, third.half().float())):
        states = {}
        inputs = {"k": third, "v": third, "index": index(2)}
        found = machine_of(package, "decode", rounding=rounding).run(inputs, states=states)
        assert torch.equal(found["k_seen"][:, :, 2:3], wanted)
        assert torch.equal(states["kv"][0:1, :, 2:3], wanted)


# what a package holds


def test_a_package_lists_the_states_of_each_function_apart_from_its_inputs(package):
    states = {name: [str(one) for one in f.states] for name, f in package.functions.items()}
    kv = ["fp16 (3, 2, 5, 4)"]
    assert states == dict.fromkeys(("decode", "prefill_3", "shift", "look"), kv) | {
        "other": ["fp16 (2, 1, 3, 2)"]
    }
    assert package.states == {"kv", "own"}
    assert [one.name for one in package.functions["decode"].inputs] == ["k", "v", "index"]
    from topoc.lowering.coreml_proto import messages

    model = messages().Model()
    model.ParseFromString(package.model_path.read_bytes())
    for one in model.description.functions:
        assert [state.name for state in one.state] == [
            state.name for state in package.functions[one.name].states
        ]
        assert all(state.type.HasField("stateType") for state in one.state)
        assert {"kv", "own"}.isdisjoint(value.name for value in (*one.input, *one.output))


def kinds(package, name):
    return [op.type for op in package.function(name).ops if op.type not in {"const", "cast"}]


def test_each_write_is_one_update_of_a_slice_and_is_read_afresh(package):
    assert kinds(package, "decode") == [
        "concat", "add", "read_state", "slice_update", "write_state", "read_state",
        "concat", "add", "slice_update", "write_state", "read_state",
        "slice_by_size", "slice_by_size",
    ]  # fmt: skip
    assert kinds(package, "prefill_3") == [
        "read_state", "slice_by_size", "concat", "add", "slice_update", "write_state",
        "read_state", "concat", "slice_by_size",
    ]  # fmt: skip


def test_the_last_write_is_read_by_nobody(package):
    assert kinds(package, "shift") == [
        "read_state", "slice_by_size", "slice_by_size", "concat", "slice_update", "write_state",
    ]  # fmt: skip


def test_a_state_that_is_replaced_whole_is_not_read_first(package):
    assert kinds(package, "other") == ["write_state", "read_state", "slice_by_size"]


def test_only_an_fp32_program_casts_around_its_states(package):
    for name, function in package.functions.items():
        found = Counter(op.type for op in function.ops)["cast"]
        wide = any(one.dtype == "fp32" for op in function.ops for one in op.outputs)
        writes = [op for op in function.ops if op.type == "write_state"]
        assert wide == (found > 0), name
        assert found >= len(writes) * wide


def test_names_are_those_of_the_program(package):
    function = package.function("decode")
    read = {op.outputs[0].name for op in function.ops if op.type == "read_state"}
    assert read == {"kv_k_held", "kv_k", "kv_v"}
    names = [one.name for op in function.ops for one in op.outputs]
    assert len({*names, "kv"}) == len(names) + 1


def everything(dtype):
    """States, tiles of attention, a head in slices and a tiny weight in two functions."""
    programs = []
    for program in programs_of(dtype)[:2]:
        seen = next(one.value for one in program.outputs if one.value.name == "k_seen")
        q, mask = (Value(n, TensorType(dtype, s)) for n, s in QUERIES.items())
        x = Value("x", TensorType(dtype, (1, 16, 1, 1)))
        slices = [Linear(x, Weight("embed", TensorType(dtype, (n, 16)), first=at)) for at, n in CUT]
        parts = [Value(f"part{at}", op.result_type()) for at, op in enumerate(slices)]
        ops = {
            "attended": TiledAttention(q, seen, seen, mask, 0.25, 2),
            "normal": UnitRmsNorm(q, 1e-6, 3),
            **{part.name: op for part, op in zip(parts, slices, strict=True)},
            "all": JoinChannels(tuple(parts)),
            "scaled": ScaleBy(x, Weight("number", TensorType(dtype, (1,)))),
        }
        bindings = [Binding((Value(n, op.result_type()),), op) for n, op in ops.items()]
        leave = [b.result for b in bindings if b.result not in parts]
        whole = evolve(
            program,
            inputs=(*program.inputs, *(Input(one, NOTHING) for one in (q, mask, x))),
            bindings=(*program.bindings, *bindings),
            outputs=(*program.outputs, *(Output(one, Sink(kind="value")) for one in leave)),
        )
        verify(whole)
        programs.append(whole)
    return tuple(programs)


QUERIES = {"q": (1, 4, 1, 4), "mask": (1, 1, 1, 5)}
CUT = ((0, 5), (5, 19))
NOTHING = Source(kind="value")


@DTYPES
def test_the_bytes_are_those_of_coremltools_own_exporter(dtype, tmp_path):
    programs = everything(dtype)
    drawn = Drawn.of(*programs)
    path = write_package(programs, drawn, tmp_path / "ours.mlpackage", dtype)
    model, weights = as_coremltools_would(programs, drawn, tmp_path / "theirs", dtype)
    assert (path / WEIGHTS).read_bytes() == weights
    assert (path / MODEL).read_bytes() == model


@DTYPES
def test_coremltools_reads_the_states_back(dtype, tmp_path):
    from topoc.lowering.emit.mil.toolkit import toolkit

    programs = programs_of(dtype)
    path = write_package(programs, Drawn({}), tmp_path / "p.mlpackage", dtype)
    kit = toolkit()
    import coremltools
    from coremltools.converters.mil.frontend.milproto.load import load

    spec = coremltools.utils.load_spec(str(path))
    read = load(spec, kit.specification, str(path / "Data/com.apple.CoreML/weights"))
    assert set(read.functions) == {one.name for one in programs}
    for program in programs:
        function = read.functions[program.name]
        wanted = {one.value.name for one in program.inputs if one.source.kind == "state"}
        states = {n for n, var in function.inputs.items() if kit.types.is_state(var.sym_type)}
        assert states == wanted
        updates = [op for op in function.operations if op.op_type == "coreml_update_state"]
        writes = [b for b in program.bindings if b.op.mnemonic == "write_state"]
        assert len(updates) == len(writes)


# what must not be


TWICE = """\
  %kv: fp16[3,2,5,4] = state(name=cache),
  %kv2: fp16[3,2,5,4] = state(name=cache)
"""


def broken(text, old, new):
    assert text.count(old) >= 1, old
    return parse(text.replace(old, new))


@pytest.mark.parametrize(
    ("text", "old", "new", "words"),
    [
        (DECODE, "state=%kv_k,", "state=%kv,", "%kv is read after %kv_k was written"),
        (
            DECODE,
            "state_row(state=%kv_v, row=1",
            "state_row(state=%kv, row=1",
            "%kv is read after %kv_v was written",
        ),
        (
            PREFILL,
            "state_row(state=%kv_k",
            "state_row(state=%kv",
            "%kv is read after %kv_k was written",
        ),
        (
            PREFILL,
            "return %k_seen ->",
            "return %kv_k ->",
            "%kv_k is a state and can't be an output",
        ),
        (PREFILL, "return %k_seen ->", "return %kv ->", "%kv is a state and can't be an output"),
        (
            PREFILL,
            "append_rows(cache=%k_old",
            "append_rows(cache=%kv",
            "%kv is a state and is read as a tensor",
        ),
        (PREFILL, "state(name=cache)", "buffer(name=cache)", "%kv is no state"),
        (
            LOOK,
            "  %kv: fp16[3,2,5,4] = state(name=cache)\n",
            TWICE,
            "the state `cache` is taken 2 times",
        ),
        (DECODE, "row=1, index", "row=3, index", "%kv_v is of operands that don't fit each other"),
        (DECODE, "row=1, index", "row=-1, index", "%kv_v is of operands that don't fit"),
        (
            DECODE,
            "%index: int32[1]",
            "%index: int32[2]",
            "%kv_k is of operands that don't fit each other",
        ),
        (DECODE, "int32[1]", "fp16[1]", "%kv_k is of operands that don't fit each other"),
        (DECODE, "%k: fp16[1,2,1,4]", "%k: fp16[1,3,1,4]", "%kv_k is of operands that don't fit"),
        (DECODE, "%k: fp16[1,2,1,4]", "%k: fp16[1,2,6,4]", "%kv_k is of operands that don't fit"),
        (DECODE, "%k: fp16[1,2,1,4]", "%k: fp32[1,2,1,4]", "%kv_k is of operands that don't fit"),
        (LOOK, "row=2", "row=3", "%last is of operands that don't fit each other"),
        (
            LOOK,
            "%last: fp16[1,1,2,3] = state_row(state=%kv, row=2, heads=1, slots=2, width=3)",
            "%last: fp16[1,1,6,3] = state_row(state=%kv, row=2, heads=1, slots=6, width=3)",
            "%last is of operands that don't fit each other",
        ),
    ],
)
def test_a_fault_with_a_state_is_found_and_named(text, old, new, words):
    with pytest.raises(MalformedProgramError) as failure:
        verify(broken(text, old, new))
    assert words in str(failure.value)


def test_a_write_that_nobody_reads_is_none():
    verify(parse(SHIFT))


def test_states_of_a_package_have_one_type(tmp_path):
    wide = broken(LOOK, "[3,2,5,4]", "[4,2,5,4]")
    programs = (parse(DECODE), wide)
    with pytest.raises(MalformedProgramError, match="look: %kv has another type"):
        verify_together(programs)
    with pytest.raises(MalformedProgramError, match="look: %kv has another type"):
        write_package(programs, Drawn({}), tmp_path / "p.mlpackage", DType.FP16)


def test_a_buffer_has_one_name_in_a_package():
    with pytest.raises(MalformedProgramError, match="look: %kept is %kv in another function"):
        verify_together((parse(DECODE), broken(LOOK, "%kv", "%kept")))


def test_the_description_of_a_state_must_agree_with_the_function(package, tmp_path):
    from shutil import copytree

    from topoc.lowering.coreml_proto import messages

    path = tmp_path / "p.mlpackage"
    copytree(package.path, path)
    model = messages().Model()
    model.ParseFromString((path / MODEL).read_bytes())
    del model.description.functions[0].state[:]
    (path / MODEL).write_bytes(model.SerializeToString())
    with pytest.raises(TopocError, match="the description lists the states none, and function"):
        Package(path)
