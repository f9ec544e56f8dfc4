"""Whatever a program looks like, every rule on MIL comes to an end and finds what it may."""

from hypothesis import given, settings
from hypothesis import strategies as st

from topoc.dsl.lint.engine import Subjects, examine
from topoc.dsl.lint.mil import (
    FLEXIBLE,
    Block,
    Feature,
    Function,
    Literal,
    Op,
    Package,
    Tensor,
    Value,
)
from topoc.dsl.lint.placement import SEEN, TOLD, table
from topoc.dsl.lint.rules import CODES
from topoc.dsl.lint.subject import Mil

KINDS = sorted({*SEEN, *TOLD, "const", "scaled_dot_product_attention", "square", "reduce_l2_norm"})
KINDS += ["inverse", "sin", "erf", "cond", "constexpr_lut_to_dense", "constexpr_lut_to_sparse"]
KINDS += ["constexpr_blockwise_shift_scale", "constexpr_sparse_to_dense"]
KEYS = ("axis", "indices", "epsilon", "values", "weight", "groups", "data", "input")
KEYS += ("lut", "scale", "query", "a", "b", "state", "value", "transpose_x", "gamma", "update")
NAMES = [f"v{at}" for at in range(4)]
DTYPES = ("fp16", "fp32", "int32", "int64", "int16", "uint4", "int8", "bool", "string", "listType")

names = st.sampled_from(NAMES)
sizes = st.sampled_from([1, 2, 8, 16, 64, 65_537, 0, FLEXIBLE])
tensors = st.builds(Tensor, st.sampled_from(DTYPES), st.lists(sizes, max_size=6).map(tuple))
numbers = st.sampled_from([0, 1, -1, 2, 64, True, 0.0, 1e-6, 2.0, -1e4, float("-inf"), "text"])
literals = st.builds(
    Literal,
    tensors,
    st.none() | st.lists(numbers, max_size=3).map(tuple),
    st.none() | st.just(("weight.bin", 64)),
)
operands = st.lists(names | literals, max_size=3).map(tuple)
single = st.tuples(names) | st.tuples(literals) | st.just(())
values = st.builds(Value, names, tensors)


def ops(blocks):
    return st.builds(
        Op,
        st.sampled_from(KINDS),
        names,
        st.fixed_dictionaries({"x": single, "y": single}, optional=dict.fromkeys(KEYS, operands)),
        st.lists(values, max_size=2).map(tuple),
        blocks,
        st.none() | literals,
    )


inner = st.builds(
    Block,
    st.lists(values, max_size=1).map(tuple),
    st.lists(ops(st.just(())), max_size=2).map(tuple),
    st.lists(names, max_size=1).map(tuple),
)
functions = st.builds(
    Function,
    name=st.sampled_from(["main", "decode"]),
    opset=st.just("CoreML8"),
    inputs=st.lists(st.builds(Feature, names, tensors), max_size=3).map(tuple),
    states=st.lists(values, max_size=3).map(tuple),
    outputs=st.lists(names, max_size=2).map(tuple),
    body=st.lists(ops(st.lists(inner, max_size=1).map(tuple)), max_size=12).map(tuple),
)
packages = st.builds(Package, st.just("any.mlpackage"), st.lists(functions, max_size=2).map(tuple))


@settings(max_examples=40)
@given(packages)
def test_no_program_ends_in_a_traceback(package):
    """Names come twice, operands are missing, values are made of themselves."""
    for finding in examine(Subjects(packages=(Mil(package),))).findings:
        assert finding.code in CODES
        assert finding.help
    counted = sum(row.count for row in table(package))
    assert counted == sum(len(one.compute) for one in package.functions)
