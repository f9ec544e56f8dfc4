"""The Program form: it prints and reads back, breaks loudly, and knows where it came from."""

import re
from textwrap import dedent

import pytest
from attrs import evolve
from tiny_topology import BOTH, HALVES, load_tiny, without_post_norms

from topoc.lowering import text
from topoc.lowering.build import build
from topoc.lowering.ir import Binding, DType, Input, Output, TensorType, Value, Weight
from topoc.lowering.manifest import Sink, Source
from topoc.lowering.ops.attention import Attention, TiledAttention
from topoc.lowering.ops.cache import BlendIn, ShiftIn
from topoc.lowering.ops.elementwise import Add, Scale, ScaleBy
from topoc.lowering.ops.head import TopK
from topoc.lowering.ops.heads import Channels, JoinChannels
from topoc.lowering.ops.linear import Linear
from topoc.lowering.passes import pipeline, run
from topoc.lowering.plan import plan
from topoc.lowering.rescale import Scales
from topoc.lowering.text import ProgramTextError, parse, show
from topoc.lowering.verify import MalformedProgramError, verify

SCALES = Scales(
    residual=(0.25, 0.25, 0.03125, 0.03125, 0.0078125),
    branches=((1.0, 8.0), (1.0, 1.0), (4.0, 1.0), (1.0, 1.0)),
)
KV = """
  kv {
    sliding: write shift, row padded(heads = 3)
    full: write blend
  }
"""
BODIES = {
    "argmax": {"chunks": "chunk whole = L0-3 + norm + head(argmax)"},
    "logits": {"chunks": "chunk whole = L0-3 + norm + head(logits)"},
    "topk": {"chunks": "chunk whole = L0-3 + norm + head(topk = 5)"},
    "hidden": {"chunks": "chunk whole = L0-3 + norm + head(hidden)"},
    "embedded": {"chunks": "chunk whole = embed + L0-3 + norm + head(argmax)"},
    "halves": {"chunks": HALVES},
    "written": {"body": BOTH + KV},
    "embed_alone": {"chunks": "chunk e = embed\n  chunk l = L0-3\n  chunk h = norm + head(argmax)"},
    "head_apart": {"chunks": "chunk n = L0-3 + norm\n  chunk h = head(argmax)"},
    "untied": {"tie_word_embeddings": False},
    "capped": {"final_logit_softcapping": 30.0},
}


def built(folder, **options):
    """Every program of a tiny topology, before and after the passes."""
    topology, found = load_tiny(folder, **options)
    programs = []
    for architecture in (found, without_post_norms(found)):
        for function in topology.functions:
            for chunk in topology.chunks_of(function):
                raw = build(topology, architecture, function, chunk)
                programs += [raw, run(pipeline(), raw), run(pipeline(SCALES), raw)]
    return programs


@pytest.fixture(params=BODIES)
def programs(request, tmp_path):
    return built(tmp_path, **BODIES[request.param])


def test_programs_print_and_read_back(programs):
    for program in programs:
        assert parse(show(program)) == program
        assert show(parse(show(program))) == show(program)


def test_what_the_builder_makes_is_well_formed(programs):
    for program in programs:
        verify(program)


def test_every_op_knows_the_part_of_the_text_that_it_comes_from(programs):
    for program in programs:
        for binding in program.bindings:
            assert binding.span is not None, binding
            part = binding.span.text
            assert binding.span.source.text[binding.span.start :].startswith(part)
            assert re.fullmatch(r"embed|L\d-\d|norm|head\([a-z0-9 =]+\)", part), part
            if binding.layer is not None:
                first, last = map(int, part.removeprefix("L").split("-"))
                assert first <= binding.layer <= last


def test_a_cache_leaves_as_it_came_and_rows_fit_into_it(programs):
    for program in programs:
        sources = {one.source.name: one.value.type for one in program.inputs}
        for one in program.outputs:
            if one.sink.kind == "buffer":
                assert one.value.type == sources[one.sink.name]
            if one.sink.kind == "rows":
                rows, heads, slots, width = one.value.shape
                cache = sources[one.sink.name].shape
                assert (rows, heads, width) == (cache[0], cache[1], cache[3])
                assert f"_{slots}" in program.name or slots == 1


def test_the_text_of_the_module_is_a_program():
    assert parse(dedent(text.__doc__.split("\n\n")[1]) + "\n").bindings[0].layer == 0


def test_a_weight_prints_all_of_its_recipe():
    weight = Weight("layers.3.q", TensorType(DType.FP16, (4, 4)), 1.0000001, 1 / 3)
    for one in (weight, evolve(weight, first=0), evolve(weight, first=12), sliced(weight)):
        program = evolve(SUM, bindings=(Binding((B,), Linear(A, one)),), outputs=(out(B),))
        assert parse(show(program)) == program
    assert weight.key != evolve(weight, offset=1.0).key
    assert "@(layers.3.q[12:16]: fp16[4,4])" in show(
        evolve(SUM, bindings=(Binding((B,), Linear(A, sliced(weight))),), outputs=(out(B),))
    )


def sliced(weight):
    return Weight(weight.role, weight.type, first=12)


def test_rows_of_a_weight_that_are_not_those_of_its_type_are_refused():
    weight = Weight("w", TensorType(DType.FP16, (4, 4)), first=12)
    program = evolve(SUM, bindings=(Binding((B,), Linear(A, weight)),), outputs=(out(B),))
    with pytest.raises(ProgramTextError, match=re.escape("@(w[12:17]")):
        parse(show(program).replace("[12:16]", "[12:17]"))


def value(name, *shape, dtype=DType.FP16):
    return Value(name, TensorType(dtype, shape or (1, 4, 1, 1)))


def given(one):
    return Input(one, Source(kind="value", name=one.name))


def out(one):
    return Output(one, Sink(kind="value", name=one.name))


A, B, C, D = (value(name) for name in "abcd")
SUM = parse(
    """\
program decode(
  %a: fp16[1,4,1,1] = value(name=a),
  %b: fp16[1,4,1,1] = value(name=b)
) {
  %c: fp16[1,4,1,1] = add(x=%a, y=%b)
  %d: fp16[1,4,1,1] = scale(x=%c, factor=0.5)
  return %d -> value(name=d)
}
"""
)


def test_a_well_formed_program_passes():
    verify(SUM)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("program decode(", "programme decode(", "programme decode("),
        (") {", "", ") {"),
        ("}", "", "}"),
        ("%a: fp16[1,4,1,1] = value(name=a)", "%a: fp64[1]", "%a: fp64[1]"),
        ("%a: fp16[1,4,1,1] =", "%a: fp16[,] =", "%a: fp16[,]"),
        ("value(name=a)", "nowhere(name=a", "nowhere(name=a"),
        ("value(name=a)", "value(nom=a)", "value(nom=a)"),
        ("value(name=a)", "value(name=a, scale=x)", "value(name=a, scale=x)"),
        ("value(name=a)", "value(name=a, and more)", "value(name=a, and more)"),
        ("add(x=%a, y=%b)", "sum(x=%a, y=%b)", "sum(x=%a, y=%b)"),
        ("add(x=%a, y=%b)", "add(x=%a, y=%z)", "add(x=%a, y=%z)"),
        ("add(x=%a, y=%b)", "add(x=%a)", "add(x=%a)"),
        ("add(x=%a, y=%b)", "add(x=%a, y=%b, z=%a)", "z=%a)"),
        ("add(x=%a, y=%b)", "add(x=%a, rubbish, y=%b)", "rubbish"),
        ("factor=0.5", "factor=half", "factor=half"),
        ("factor=0.5", "factor=@(w: fp16[4)", "factor=@(w"),
        ("%c: fp16[1,4,1,1] = add", "c = add", "c = add"),
        ("return %d", "return %x", "return %x"),
        ("return %d -> value(name=d)", "return %d", "return %d"),
        ("}\n", "}\nmore\n", "more"),
    ],
)
def test_a_text_that_is_no_program_is_refused_with_its_line(old, new, line):
    broken = show(SUM).replace(old, new, 1)
    assert broken != show(SUM)
    with pytest.raises(ProgramTextError, match=re.escape(line)):
        parse(broken)


def test_an_op_that_refuses_its_attribute_is_told_with_its_line():
    broken = show(SUM).replace("scale(x=%c, factor=0.5)", "softcap(x=%c, cap=-1.0)")
    with pytest.raises(ProgramTextError, match=re.escape("softcap(x=%c, cap=-1.0)")):
        parse(broken)


def adding(*bindings, outputs=(D,), inputs=(A, B)):
    return evolve(
        SUM,
        inputs=tuple(map(given, inputs)),
        bindings=bindings,
        outputs=tuple(map(out, outputs)),
    )


def bind(result, op):
    return Binding((result,), op)


def projected(result, *shape):
    return bind(result, Linear(A, Weight("w", TensorType(DType.FP16, shape))))


def named(name):
    other = value(name)
    return adding(bind(other, Add(A, B)), bind(D, Scale(other, 1.0)))


WIDE = value("wide", 1, 2, 1, 1)
HOT, LONG = value("hot", 1, 1, 2, 1), value("long", 1, 4, 1, 2)
KEYS = value("keys", 1, 1, 2, 1)
PAIR, SEEN = value("pair", 1, 2, 2, 1), value("seen", 1, 1, 1, 2)
MASKED = (A, KEYS, value("m", 1, 1, 1, 3))
BEST = (value("best", 1, 2, 1, 1), value("ids", 1, 2, 1, 1, dtype=DType.INT32))
TALL = value("tall", 1, 1, 1, 1, 2, 2)
POINT = Value("point", TensorType(DType.FP16, ()))
TWICE = evolve(Weight("w", TensorType(DType.FP16, (4, 4))), type=TensorType(DType.FP32, (4, 4)))


def test_values_and_weights_made_alike_are_found_as_one():
    one, other = value("a"), value("a")
    assert {one: 1}[other] == 1
    assert value("a", dtype=DType.FP32) not in {one: 1}
    wide = Weight("w", TensorType(DType.FP32, (4, 4)))
    alike = evolve(wide)
    assert {wide: 1}[alike] == 1
    assert not {TWICE, evolve(wide, factor=2.0)} & {Weight("w", TensorType(DType.FP16, (4, 4)))}


FAULTS = {
    "a name twice": (
        adding(bind(C, Add(A, B)), bind(C, Add(A, B)), bind(D, Scale(C, 1.0))),
        "%c is bound 2 times",
    ),
    "an op named as an input": (
        adding(bind(A, Add(A, B)), bind(D, Scale(A, 1.0))),
        "%a is bound 2 times",
    ),
    "an input twice": (adding(bind(D, Add(A, B)), inputs=(A, A, B)), "%a is bound 2 times"),
    "an illegal name": (named("c.1"), "%c.1 is no name that MIL keeps"),
    "a name that starts with a digit": (named("0c"), "%0c is no name that MIL keeps"),
    "a name beyond ASCII": (named("größe"), "%größe is no name that MIL keeps"),
    "a reserved name": (named("state"), "%state is no name that MIL keeps"),
    "a reserved name in capitals": (named("False"), "%False is no name that MIL keeps"),
    "a wrong type": (
        adding(bind(value("d", 1, 4, 1, 2), Add(A, B)), outputs=(value("d", 1, 4, 1, 2),)),
        "%d has another type than its op gives",
    ),
    "a wrong element type": (
        adding(
            bind(value("d", dtype=DType.FP32), Add(A, B)), outputs=(value("d", dtype=DType.FP32),)
        ),
        "%d has another type than its op gives",
    ),
    "an unused input": (adding(bind(D, Scale(A, 1.0))), "%b is never read"),
    "a dead op": (adding(bind(C, Add(A, B)), bind(D, Add(A, B))), "%c is never read"),
    "a dead op of two results": (
        adding(bind(D, Add(A, B)), Binding(BEST, TopK(D, 2))),
        "%best is never read",
    ),
    "a use before its binding": (
        adding(bind(D, Add(A, C)), bind(C, Add(A, B))),
        "%c is read before it is bound",
    ),
    "a use before its binding, later on": (
        adding(bind(value("e"), Scale(A, 1.0)), bind(D, Add(value("e"), C)), bind(C, Add(A, B))),
        "%c is read before it is bound",
    ),
    "a use of nothing": (adding(bind(D, Add(A, C)), inputs=(A,)), "%c is read before it is bound"),
    "a use at another type": (
        adding(bind(C, Add(A, B)), bind(D, Add(A, evolve(C, type=WIDE.type)))),
        "%c is read before it is bound",
    ),
    "an output twice": (adding(bind(D, Add(A, B)), outputs=(D, D)), "%d can't be an output"),
    "an output that is an input": (
        adding(bind(D, Add(A, B)), outputs=(D, A)),
        "%a can't be an output",
    ),
    "an output that is nothing": (
        adding(bind(D, Add(A, B)), outputs=(D, C)),
        "%c can't be an output",
    ),
    "no output": (adding(bind(D, Add(A, B)), outputs=()), "%d is never read"),
    "rank six": (
        adding(bind(D, Scale(TALL, 1.0)), inputs=(TALL,)),
        "%tall has the shape (1, 1, 1, 1, 2, 2)",
    ),
    "rank zero": (adding(bind(D, Scale(POINT, 1.0)), inputs=(POINT,)), "%point has the shape ()"),
    "an empty axis": (
        adding(
            bind(value("d", 1, 0), Scale(value("e", 1, 0), 1.0)),
            inputs=(value("e", 1, 0),),
            outputs=(value("d", 1, 0),),
        ),
        "%e has the shape (1, 0)",
    ),
    "a weight at two shapes": (
        adding(projected(C, 4, 4), projected(WIDE, 2, 4), bind(D, Add(C, B)), outputs=(D, WIDE)),
        "@w is used at two types",
    ),
    "a weight at two element types": (
        adding(
            projected(C, 4, 4),
            bind(value("e"), Linear(A, TWICE)),
            bind(D, Add(C, B)),
            outputs=(D, value("e")),
        ),
        "@w is used at two types",
    ),
    "a mask of another width": (
        adding(bind(D, Attention(A, KEYS, KEYS, value("m", 1, 1, 1, 3), 1.0)), inputs=MASKED),
        "%d is of operands that don't fit each other",
    ),
    "heads that no groups share": (
        adding(
            bind(value("q", 1, 3, 1, 1), Attention(value("x", 1, 3, 1, 1), PAIR, PAIR, SEEN, 1.0)),
            inputs=(value("x", 1, 3, 1, 1), PAIR, SEEN),
            outputs=(value("q", 1, 3, 1, 1),),
        ),
        "%q is of operands that don't fit each other",
    ),
    "tiles of nothing": (
        adding(
            bind(D, TiledAttention(A, KEYS, KEYS, value("m", 1, 1, 1, 2), 1.0, 0)),
            inputs=(A, KEYS, value("m", 1, 1, 1, 2)),
        ),
        "%d is of operands that don't fit each other",
    ),
    "rows of another width": (
        adding(bind(D, ShiftIn(A, WIDE)), inputs=(A, WIDE)),
        "%d is of operands that don't fit each other",
    ),
    "a one-hot of another height": (
        adding(bind(D, BlendIn(A, B, value("hot", 1, 1, 2, 1))), inputs=(A, B, HOT)),
        "%d is of operands that don't fit each other",
    ),
    "channels that are not there": (
        adding(bind(C, Channels(A, 3, 2)), outputs=(C,), inputs=(A,)),
        "%c is of operands that don't fit each other",
    ),
    "channels of other tokens": (
        adding(bind(D, JoinChannels((A, value("long", 1, 4, 1, 2)))), inputs=(A, LONG)),
        "%d is of operands that don't fit each other",
    ),
    "a number of two elements": (
        adding(bind(D, ScaleBy(A, Weight("n", TensorType(DType.FP16, (2,))))), inputs=(A,)),
        "%d is of operands that don't fit each other",
    ),
    "a reserved function name": (evolve(SUM, name="State"), "`State` is no name that MIL keeps"),
    "an illegal function name": (
        evolve(SUM, name="pre fill"),
        "`pre fill` is no name that MIL keeps",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(fault):
    program, words = FAULTS[fault]
    with pytest.raises(MalformedProgramError, match=re.escape(words)) as failure:
        verify(program)
    assert str(failure.value).startswith(f"{program.name}: ")


def test_all_faults_are_told_at_once_in_a_steady_order():
    program = adding(bind(value("0c"), Add(A, B)), bind(value("1c"), Add(A, B)), outputs=())
    with pytest.raises(MalformedProgramError) as failure:
        verify(program)
    assert str(failure.value) == (
        "decode: %0c is no name that MIL keeps; %1c is no name that MIL keeps;"
        " %0c is never read; %1c is never read"
    )


def test_one_result_of_two_may_stay_unread():
    verify(adding(bind(D, Add(A, B)), Binding(BEST, TopK(D, 2)), outputs=(BEST[1],)))


def test_an_op_that_is_in_no_catalogue_is_found():
    class Foreign(Add):
        mnemonic = "foreign"

    with pytest.raises(MalformedProgramError, match="foreign is not in ALL_OPS"):
        verify(adding(bind(D, Foreign(A, B))))


def test_one_chunk_is_cut_from_another_at_a_value_of_the_same_type(tmp_path):
    for name, options in BODIES.items():
        folder = tmp_path / name
        folder.mkdir()
        for program_list in calls(folder, **options):
            left = {}
            for program in program_list:
                for one in program.inputs:
                    if one.source.kind == "value":
                        assert left[one.source.name] == one.value.type
                left |= {
                    o.sink.name: o.value.type for o in program.outputs if o.sink.kind == "value"
                }


def calls(folder, **options):
    topology, found = load_tiny(folder, **options)
    laid = plan(topology, found, scales=SCALES)
    for function in topology.functions:
        yield [
            program
            for package in laid.packages
            for program in package.programs
            if program.name == function.name
        ]


def test_a_plan_is_made_once_for_one_topology_and_its_scales(tmp_path):
    topology, found = load_tiny(tmp_path)
    made = plan(topology, found)
    assert plan(topology, found) is made
    assert plan(topology, found, scales=Scales.none(4)) is made
    assert plan(topology, found, scales=SCALES) is not made
    assert plan(topology, found, dtype=DType.FP32) is not made
    again, _ = load_tiny(tmp_path)
    assert again == topology
    assert plan(again, found).topology is again  # findings point into its own text


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_one_factor_makes_a_change(factor):
    assert not Scales.none(2).change
    assert not Scales(residual=(1.0,) * 3, branches=((1.0,), ())).change
    assert Scales(residual=(1.0, factor, 1.0), branches=((), ())).change
    assert Scales(residual=(1.0,) * 3, branches=((1.0,), (1.0, factor))).change
