"""Templates of ops: what coremltools makes of each different op, made once and repeated."""

import os
import subprocess
import sys

import numpy as np
import pytest
from compiled import resolved, topology_text
from coremltools_peer import through_coremltools
from hypothesis import given
from hypothesis import strategies as st
from test_compressed import SCHEMES
from tiny_checkpoint import four_layers
from twins import with_weights

from topoc.lowering.architecture import read
from topoc.lowering.emit.mil import derive, direct, emit, module, templates
from topoc.lowering.emit.mil.block import Block, Shared
from topoc.lowering.emit.mil.templates import Templates
from topoc.lowering.emit.mil.var import Literal, Placed, Signature, Type, Var
from topoc.lowering.interpret.dtypes import BY_NAME
from topoc.lowering.ir import DType, TensorType, Weight
from topoc.lowering.kept import Kept
from topoc.lowering.lint.programs import _ones
from topoc.lowering.plan import plan

HALVES = "chunk one = L0-1\n  chunk two = L2-3 + norm + head(argmax)"
THIRD = "chunk most = L0-2\n  chunk rest = L3 + norm + head(argmax)"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("templates")
    four_layers(folder)
    return folder


def packages(config, schemes=(), chunks=HALVES):
    """The packages of a tiny topology."""
    text = topology_text(chunks=chunks, functions="decode, prefill(tokens = 4)")
    topology = resolved(text, config)
    return plan(with_weights(topology, schemes) if schemes else topology, read(config)).packages


def emitted(package, **options):
    return emit(package.programs, dtype=DType.FP16, recipes=package.recipes, **options)


@pytest.fixture
def asked(monkeypatch):
    """What is asked of coremltools, in order."""
    asked = []
    monkeypatch.setattr(templates, "_derived", templates._derived.__wrapped__)
    real = derive.derive
    monkeypatch.setattr(derive, "derive", lambda one: asked.append(one) or real(one))
    return asked


@pytest.mark.parametrize("name", SCHEMES)
def test_compressed_weights_stand_as_coremltools_would_put_them(name, config, tmp_path):
    package = packages(config, SCHEMES[name])[-1]
    emission = emitted(package)

    def ones(placed, like):
        value = np.ones_like(like) if like.size < 10 else like
        return value.view(like.dtype)

    told = {"made": "by a test"}
    theirs, _ = through_coremltools(
        package.programs, tmp_path, DType.FP16, ones, recipes=package.recipes, metadata=told
    )

    assert b"constexpr_" in theirs
    assert emission.serialised(_ones, told) == theirs


def test_each_different_op_is_asked_for_once(config, asked):
    known = Templates()
    first, second = packages(config)
    emitted(first, templates=known)
    count = len(asked)
    assert count == len(set(asked)) > 20
    emitted(first, templates=known)
    assert len(asked) == count
    emitted(second, templates=known)
    assert {one.kind for one in asked[count:]} >= {"reduce_argmax"}
    assert len(asked) == len(set(asked))


def test_other_chunks_ask_for_nothing(config, asked):
    known = Templates()
    for one in packages(config):
        emitted(one, templates=known)
    count = len(asked)
    for one in packages(config, chunks=THIRD):
        emitted(one, templates=known)
    assert len(asked) == count > 20


def same(one):
    """What needs no builder is what the builder would make."""
    block, results = direct.directly(one)
    serialised, types = derive.derive(one)
    return (block.SerializeToString(deterministic=True), results) == (serialised, types)


def test_what_needs_no_builder_is_what_it_would_make(config, monkeypatch):
    found = []
    monkeypatch.setattr(templates, "directly", lambda one: found.append(one) or None)
    monkeypatch.setattr(templates, "_derived", templates._derived.__wrapped__)
    for schemes in ((), SCHEMES["4 bits, int8 tables"]):
        for package in packages(config, schemes):
            emitted(package)
    known = [one for one in found if direct.directly(one)]
    assert {one.kind for one in known} == {"const", "slice_by_size", "concat"}
    assert all(map(same, known))


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def literal(values):
    return Literal.of(np.array(values, np.int32))


@given(SIZES, st.data())
def test_slices_need_no_builder_where_they_fit(shape, data):
    ints = st.tuples(*[st.integers(-1, 4)] * len(shape))
    begin, size = data.draw(ints), data.draw(ints)
    kind = Type("fp16", shape)
    asked = Signature(
        "slice_by_size", (("x", kind), ("begin", literal(begin)), ("size", literal(size)))
    )
    if direct.directly(asked):
        assert same(asked)
    else:
        assert any(
            b < 0 or n < 1 or b + n > one for b, n, one in zip(begin, size, shape, strict=True)
        )


@given(
    SIZES, st.integers(-2, 4), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.booleans()
)
def test_joins_need_no_builder_where_they_fit(shape, axis, along, like):
    parts = [(*shape[:axis], one, *shape[axis + 1 :]) if axis >= 0 else shape for one in along]
    kinds = tuple(Type("fp16" if like or at else "fp32", one) for at, one in enumerate(parts))
    arguments = (("values", kinds), ("axis", Literal.of(np.int32(axis))))
    asked = Signature("concat", (*arguments, ("interleave", Literal.of(False))))
    if direct.directly(asked):
        assert same(asked)
    else:
        assert axis < 0 or axis >= len(shape) or (len(kinds) > 1 and not like)


def test_kept_templates_give_the_same_bytes(config, tmp_path, asked):
    (first, _), kept = packages(config), Kept(tmp_path)
    made = emitted(first, templates=Templates(kept)).serialised(_ones, {})
    assert asked
    asked.clear()
    assert emitted(first, templates=Templates(kept)).serialised(_ones, {}) == made
    assert not asked
    (entry,) = kept.entries()
    assert (entry.recipe, entry.bytes > 1000) == ("templates of MIL", True)


def test_damaged_templates_are_made_again(config, tmp_path, asked):
    (first, _), kept = packages(config), Kept(tmp_path)
    made = emitted(first, templates=Templates(kept)).serialised(_ones, {})
    (path,) = tmp_path.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[-9] ^= 1
    path.write_bytes(damaged)
    asked.clear()
    assert emitted(first, templates=Templates(kept)).serialised(_ones, {}) == made
    assert asked
    assert kept.damaged


def test_templates_of_another_version_are_not_used(config, tmp_path, asked, monkeypatch):
    (first, _), kept = packages(config), Kept(tmp_path)
    emitted(first, templates=Templates(kept))
    asked.clear()
    templates._name.cache_clear()
    monkeypatch.setattr(templates, "version", lambda _: "9.9")
    emitted(first, templates=Templates(kept))
    templates._name.cache_clear()
    assert asked


def test_too_many_templates_are_forgotten(config, tmp_path, monkeypatch):
    (first, _), kept = packages(config), Kept(tmp_path)
    monkeypatch.setattr(templates, "MOST", 10)
    emitted(first, templates=Templates(kept))
    assert kept.fact(templates._name()) == {}


def test_a_folder_that_cannot_be_written_costs_time_alone(config, tmp_path, asked):
    (first, _) = packages(config)
    (tmp_path / "file").touch()
    kept = Kept(tmp_path / "file" / "cache")
    emitted(first, templates=Templates(kept))
    assert asked


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int32, np.bool_])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11])
def test_constants_are_as_coremltools_has_them(kind, count):
    value = np.arange(count).astype(kind) if count else kind(1)
    assert same(Signature("const", (("val", Literal.of(value)),)))


def empty_block():
    from topoc.lowering.coreml_proto import mil

    return Block(Shared(Templates()), mil().Block())


@pytest.mark.parametrize(("outputs", "kept"), [(["after"], True), (["other"], False)])
def test_a_state_is_read_after_a_write_if_somebody_reads_it(outputs, kept):
    block, kind = empty_block(), Type("fp16", (1, 4))
    held = Type("fp16", (1, 4), state=True)
    given = {"state": Var("s", held, held), "value": Var("x", kind, kind)}
    block.op("coreml_update_state", "after", given, ("after",))
    block.end(outputs)
    assert [one.type for one in block.message.operations] == ["write_state", "read_state"][
        : 1 + kept
    ]


@pytest.mark.parametrize("dtype", [DType.FP16, DType.FP32], ids=lambda one: one.value)
def test_a_small_weight_is_filled_in_anew_each_time(dtype):
    """Rules see ones, and the package has the numbers."""
    block, weight = empty_block(), Weight("w", TensorType(dtype, (2,)))
    literal = Literal(dtype.value, (2,), bytes(dtype.bytes), placed=True)
    block.const("w", literal, Placed(weight, "plain"))
    (small,) = block.shared.small
    for numbers in ([1, 1], [2, 3]):
        array = np.array(numbers, BY_NAME[dtype.value].held)
        module._fill(small, array)
        tensor = small.value.immediateValue.tensor
        found = tensor.bytes.values or np.array(tensor.floats.values, np.float32).tobytes()
        assert found == array.tobytes()


def test_what_an_emitter_leaves_out_is_refused():
    block = empty_block()
    kind = Type("fp16", (1, 8, 1, 4))
    with pytest.raises(TypeError, match=r"coremltools would add made_keep_dims_\d to `reduce_max`"):
        block.op("reduce_max", "y", {"x": Var("x", kind, kind), "axes": axes(block)})


def axes(block):
    return block.const("c", Literal.of(np.array([1], np.int32)))


def test_what_mil_does_not_allow_is_refused():
    block = empty_block()
    one, other = Type("fp16", (1, 8)), Type("fp16", (1, 7))
    with pytest.raises(ValueError, match=r"(?i)incompatible|shape"):
        block.op("add", "y", {"x": Var("x", one, one), "y": Var("z", other, other)})


SCRIPT = """
import sys
from pathlib import Path
from topoc.dsl.cli import main
try:
    main(["lint", sys.argv[1], "--ops"])
except SystemExit as end:
    assert end.code in (0, None), end.code
print("coremltools.converters" in sys.modules)
"""


def test_lint_of_a_layout_that_is_known_needs_no_coremltools(config, tmp_path):
    text = topology_text(chunks=HALVES).replace('"config.json"', f'"{config}/config.json"')
    (tmp_path / "t.topo").write_text(text)
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}

    def imported():
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "t.topo")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return done.stdout.splitlines()[-1]

    assert [imported(), imported()] == ["True", "False"]
