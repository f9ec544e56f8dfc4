"""Failures that people reported of other converters: what lint must say of each, and must not.

Each case names the reports it stands for. A program that must not be flagged stands beside each
that must.
"""

import mil_text
import pytest
from topo_text import codes as listed
from topo_text import gemma3, linted, resolved

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.engine import Options, Subjects, examine
from topoc.dsl.lint.subject import Mil
from topoc.dsl.model import Target


def found(text, **options):
    subject = Mil(mil_text.package(text), Target(unit="ane", chip="a19"))
    return examine(Subjects(packages=(subject,)), Options(**options)).findings


def graded(text):
    """Code to gravest severity, without `state.update`, which its author has to allow."""
    ranks = {}
    for one in found(text, ignore=("state.update",)):
        ranks[one.code] = max(one.severity, ranks.get(one.code, one.severity))
    return ranks


def unary(shape="fp16[1,64]", kind="exp", more=""):
    return f"main(x: {shape}) {{\n y: {shape} = {kind}(x=x{more})\n return y\n}}"


# apple/coremltools#2585 — one weight beyond fp16 leaves a whole linear in fp32, silently
def test_an_op_that_was_left_in_fp32_is_found():
    text = """
main(x: fp16[1,64]) {
  wide: fp32[1,64] = cast(x=x, dtype="fp32")
  y: fp32[1,64] = linear(x=wide, weight=fp32[64,64])
  z: fp16[1,64] = cast(x=y, dtype="fp16")
  return z
}"""
    assert graded(text) == {"op.fp32-island": Severity.WARNING}
    assert graded(text.replace("fp32", "fp16")) == {}


# apple/coremltools#2688: 'mps.dequantize' op operand #2 must be tensor of quantized values
def test_a_scale_a_channel_on_palettes_is_found_and_one_on_integers_is_not():
    text = """
main(x: fp16[1,128]) {
  plain: fp16[64,128] = constexpr_lut_to_dense(indices=uint4[64,128], lut=fp16[1,1,16,1])
  w: fp16[64,128] = constexpr_blockwise_shift_scale(data=plain, scale=fp16[64,1])
  y: fp16[1,64] = linear(x=x, weight=w)
  return y
}"""
    assert graded(text) == {"quant.per-channel-scale": Severity.ERROR}
    assert graded(text.replace("data=plain", "data=int8[64,128]")) == {}


def masked(*masks):
    """Scores under masks, each a factor of an input of zeros and ones."""
    inputs = "".join(f", m{at}: fp16[1,1,1,512]" for at in range(len(masks)))
    lines, last = [], "scores"
    for at, factor in enumerate(masks):
        lines.append(f"f{at}: fp16[1,1,1,512] = mul(x=m{at}, y={factor})")
        lines.append(f"s{at}: fp16[1,8,1,512] = add(x={last}, y=f{at})")
        last = f"s{at}"
    body = "\n  ".join(lines)
    return f"""
main(q: fp16[1,8,1,64], k: fp16[1,8,64,512]{inputs}) {{
  scores: fp16[1,8,1,512] = matmul(x=q, y=k)
  {body}
  y: fp16[1,8,1,512] = softmax(x={last}, axis=-1)
  return y
}}"""


# apple/coremltools#2669, soniqo/speech-swift#342, ml-explore/mlx#2626
@pytest.mark.parametrize(
    ("masks", "flagged"),
    [
        (("-60000.0", "-60000.0"), True),
        (("-inf", "-inf"), True),
        (("-65504.0", "-1.0"), True),
        (("-10000.0", "-10000.0"), False),
        (("-10000.0",), False),
        (("-inf",), False),  # the same bits as -1e4, where a row sees anything at all
    ],
)
def test_masks_are_found_where_their_sum_leaves_fp16(masks, flagged):
    expected = {"numeric.summed-masks": Severity.WARNING} if flagged else {}
    assert graded(masked(*masks)) == expected


# Lightning-AI/litgpt#1031: positions in half precision
def test_positions_in_fp16_are_found_and_masks_of_integers_are_not():
    text = """
main(ids: int32[1], x: fp16[1,32]) {
  p: fp16[1] = cast(x=ids, dtype="fp16")
  q: fp16[1,1] = expand_dims(x=p, axes=[1])
  angles: fp16[1,32] = mul(x=q, y=FACTOR)
  y: fp16[1,32] = mul(x=x, y=angles)
  return y
}"""
    assert "op.fp16-position" in graded(text.replace("FACTOR", "fp16[1,32]"))
    assert "op.fp16-position" not in graded(text.replace("FACTOR", "-10000.0"))


# pytorch/executorch#15936, #16144; FluidInference/mobius#14; kasper0406/stablehlo-coreml#89
def test_fused_attention_is_no_more_than_a_note():
    text = """
main(q: fp16[1,8,1,64], k: fp16[1,8,512,64], v: fp16[1,8,512,64]) {
  y: fp16[1,8,1,64] = scaled_dot_product_attention(query=q, key=k, value=v)
  return y
}"""
    assert graded(text) == {"op.off-list": Severity.NOTE}


# apple/coremltools#2631: 270 fails and 256 works; LFM2 notes: a state 3 wide
@pytest.mark.parametrize("width", [80, 72, 3, 270, 64, 96, 128, 256])
def test_states_of_odd_width_are_found(width):
    text = unary().replace(") {", f", kv: state fp16[1,1,512,{width}]) {{")
    odd = {} if width % 32 == 0 else {"state.odd-width": Severity.NOTE}
    assert graded(text) == odd


def stateful(*shapes):
    given = "".join(f", s{at}: state fp16[{one}]" for at, one in enumerate(shapes))
    return unary().replace(") {", f"{given}) {{")


# CoreML-LLM docs/MLSTATE_PATTERN.md and docs/LFM2_CONVERSION_FINDINGS.md: status=0x1d
@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (["1,1,512,64"], {}),
        (["1,1,512,64"] * 2, {}),
        (["1,1,512,64", "1,64,32"], {"state.unlike-pair": Severity.WARNING}),
        (["1,1,512,64"] * 3, {"state.more-than-two": Severity.ERROR}),
    ],
)
def test_one_state_is_well_two_have_to_be_alike_and_three_are_too_many(shapes, expected):
    assert graded(stateful(*shapes)) == expected


WRITES = """
main(row: fp16[1,1,1,64], slot: fp16[1,1,512,1], at: int32[4], kv: state fp16[1,1,512,64]) {
  old: fp16[1,1,512,64] = read_state(input=kv)
  WRITE
  write_state(input=kv, data=new)
  now: fp16[1,1,512,64] = read_state(input=kv)
  y: fp16[1,1,1,512] = matmul(x=row, y=now, transpose_y=true)
  return y
}"""
SHIFTED = """tail: fp16[1,1,511,64] = slice_by_index(x=old, begin=[0, 0, 1, 0])
  new: fp16[1,1,512,64] = concat(values=(tail, row), axis=2)"""
SLICED = "new: fp16[1,1,512,64] = slice_update(x=old, update=row, begin=at, end=at)"
JOINED = """half: fp16[1,1,256,64] = mul(x=row, y=slot)
  new: fp16[1,1,512,64] = concat(values=(half, half), axis=2)"""
BLENDED = """others: fp16[1,1,512,1] = sub(x=1.0, y=slot)
  kept: fp16[1,1,512,64] = mul(x=old, y=others)
  placed: fp16[1,1,512,64] = mul(x=row, y=slot)
  new: fp16[1,1,512,64] = add(x=kept, y=placed)"""


def without_dead_inputs(ranks):
    """Each way to write reads other inputs of the same program."""
    return {code: rank for code, rank in ranks.items() if code != "features.dead-input"}


# FluidInference/mobius#77, finnvoor/CoreMLPipelines#4, apple/coremltools#2325: error code: -14
@pytest.mark.parametrize(
    ("write", "expected"),
    [(SHIFTED, {"state.concat-write": Severity.ERROR}), (JOINED, {}), (SLICED, {}), (BLENDED, {})],
    ids=["shift", "joined", "slice", "blend"],
)
def test_states_that_are_rolled_by_concat_are_found_and_other_writes_are_not(write, expected):
    text = WRITES.replace("WRITE", write)
    assert without_dead_inputs(graded(text)) == expected
    assert ("state.update", Severity.ERROR) in {(one.code, one.severity) for one in found(text)}


EXPORT = """
main(
  row: fp16[1,2,1,64], whole: fp16[1,HEADS,512,64], at: int32[4], kv: state fp16[1,HEADS,512,64]
) {
  flat: fp16[1,HEADS,512,64] = mul(x=whole, y=2.0)
  VALUE
  write_state(input=kv, data=new)
  GIVEN
  return y
}"""
WHOLE = "new: fp16[1,HEADS,512,64] = reshape(x=flat, shape=[1, 1, 512, 64])"
ROWS = """old: fp16[1,HEADS,512,64] = read_state(input=kv)
  new: fp16[1,HEADS,512,64] = slice_update(x=old, update=row, begin=at, end=at)"""


# apple/coremltools#2713: a model output that is also the value of a state; std::bad_cast on phones
@pytest.mark.parametrize(
    ("value", "given", "heads", "severity"),
    [
        (WHOLE, "y: fp16[1,1,64,512] = transpose(x=flat, perm=[0, 1, 3, 2])", 1, Severity.WARNING),
        (WHOLE, "y: fp16[1,1,64,512] = transpose(x=flat, perm=[0, 1, 3, 2])", 2, Severity.ERROR),
        (WHOLE, "y: fp16[1,1,512,64] = mul(x=new, y=0.5)", 2, None),
        (WHOLE, "y: fp16[1,1,1,64] = reduce_max(x=new, axes=[2], keep_dims=true)", 2, None),
        # K of a shared layer: the row that was merged in is a tensor of its own, the state is not
        (ROWS, "y: fp16[1,2,1,64] = identity(x=row)", 2, None),
        (ROWS, "y: fp16[1,2,1,64] = slice_by_index(x=new, begin=[0, 0, 0, 0])", 2, Severity.ERROR),
    ],
    ids=["view", "view-heads", "product", "reduction", "shared-row", "shared-cache"],
)
def test_outputs_that_are_what_a_state_holds_are_found(value, given, heads, severity):
    text = EXPORT.replace("VALUE", value).replace("GIVEN", given).replace("HEADS", str(heads))
    assert graded(text).get("state.exported-view") == severity


def conv(channels, width):
    return f"""
main(x: fp16[1,64,1,{width}]) {{
  y: fp16[1,{channels},1,{width}] = conv(x=x, weight=fp16[{channels},64,1,1])
  return y
}}"""


# ncdrone/rustane#13, maderix/ANE#26, sbryngelson/ANEForge#51; against them a head of 262,144
@pytest.mark.parametrize(
    ("channels", "width", "flagged"),
    [(64, 16384, False), (64, 16385, True), (65536, 1, False), (65537, 1, True), (262144, 1, True)],
)
def test_long_axes_are_notes_beyond_what_some_call_the_limit(channels, width, flagged):
    wide = {"op.wide-axis": Severity.NOTE} if flagged else {}
    odd = {"op.odd-output-width": Severity.NOTE} if width % 32 == 1 < width else {}
    assert graded(conv(channels, width)) == {**wide, **odd}


# apple/coremltools#1764, #2600, #2730, #2548, #1029; huggingface/exporters#37
def test_flexible_shapes_are_errors_on_the_neural_engine_and_nothing_elsewhere():
    text = unary("fp16[1,?,64]")
    assert graded(text) == {"op.dynamic-shape": Severity.ERROR}
    subject = Mil(mil_text.package(text), Target(unit="cpu"))
    assert examine(Subjects(packages=(subject,))).findings == ()
    _, refused = resolved(gemma3().replace("2048", "auto"))  # no text asks for one by accident
    assert listed(refused) == ["value.type"]


# FluidInference/mobius#67: scatter on caches, five axes in attention, six anywhere
def test_scatter_and_many_axes_are_found():
    scatter = """
main(cache: fp16[1,8,512,64], row: fp16[1,8,1,64], at: int32[1,1]) {
  y: fp16[1,8,512,64] = scatter_nd(data=cache, indices=at, updates=row, mode="update")
  return y
}"""
    assert graded(scatter) == {"op.scatter": Severity.ERROR}
    heads = """
main(q: fp16[1,2,4,1,64], k: fp16[1,2,4,64,512]) {
  y: fp16[1,2,4,1,512] = matmul(x=q, y=k)
  return y
}"""
    assert graded(heads) == {"op.rank-5-matmul": Severity.WARNING}
    assert graded(unary("fp16[1,1,2,4,8,32]")) == {"op.rank-over-5": Severity.ERROR}
    assert graded(unary("fp16[1,2,4,8,32]")) == {}


# CoreML-LLM Sources/CoreMLLLM/Qwen3VL2BGenerator.swift:273-283: Error=(11) at 32 rows
@pytest.mark.parametrize(
    ("rows", "severity"),
    [(4, None), (8, Severity.WARNING), (31, Severity.WARNING), (32, Severity.ERROR)],
)
def test_rows_that_a_product_places_in_a_cache_are_found_and_attention_is_not(rows, severity):
    text = f"""
main(mask: fp16[1,1,2048,{rows}], k: fp16[1,8,{rows},64], cache: fp16[1,8,2048,64]) {{
  placed: fp16[1,8,2048,64] = matmul(x=mask, y=k)
  y: fp16[1,8,2048,64] = add(x=cache, y=placed)
  return y
}}"""
    assert graded(text).get("op.matmul-scatter") == severity
    attention = f"""
main(
  q: fp16[1,8,2048,64], k: fp16[1,8,64,{rows}], v: fp16[1,8,{rows},64], left: fp16[1,8,2048,64]
) {{
  scores: fp16[1,8,2048,{rows}] = matmul(x=q, y=k)
  weights: fp16[1,8,2048,{rows}] = softmax(x=scores, axis=-1)
  mixed: fp16[1,8,2048,64] = matmul(x=weights, y=v)
  y: fp16[1,8,2048,64] = add(x=left, y=mixed)
  return y
}}"""
    assert "op.matmul-scatter" not in graded(attention)


def lookup(rows, dtype):
    return f"""
main(token: int32[1]) {{
  narrow: {dtype}[1] = cast(x=token, dtype="{dtype}")
  row: fp16[1,64] = gather(x=fp16[{rows},64], indices=narrow, axis=0)
  y: fp16[1,64] = add(x=row, y=1.0)
  return y
}}"""


# pytorch/executorch#7616, apple/coremltools#2222, #2365
@pytest.mark.parametrize(
    ("rows", "dtype", "flagged"),
    [
        (30_000, "int16", False),
        (32_768, "int16", False),
        (32_769, "int16", True),
        (40_000, "uint16", False),
        (70_000, "uint16", True),
        (70_000, "int32", False),
    ],
)
def test_indices_that_do_not_reach_the_last_row_are_found(rows, dtype, flagged):
    assert ("op.int16-index" in graded(lookup(rows, dtype))) is flagged


# LFM2 notes: groups == channels; Anemll/Anemll#27: convolutions are advised in place of linear
def test_linear_is_no_fault_and_a_depthwise_convolution_never_an_error():
    assert (
        graded(
            "main(x: fp16[1,64]) {\n y: fp16[1,64] = linear(x=x, weight=fp16[64,64])\n return y\n}"
        )
        == {}
    )
    depthwise = conv(64, 32).replace("weight=fp16[64,64,1,1]", "weight=fp16[64,1,1,3], groups=64")
    assert graded(depthwise) == {"op.depthwise-conv": Severity.WARNING}
    assert graded(depthwise.replace("groups=64", "groups=8")) == {}


# apple/coremltools#1893; CoreML-LLM docs/QWEN35_LESSONS.md: strides of zero
@pytest.mark.parametrize(("classes", "odd"), [(97, True), (9497, True), (96, False), (9504, False)])
def test_outputs_of_odd_width_are_notes(classes, odd):
    text = f"""
main(x: fp16[1,64]) {{
  y: fp16[1,{classes}] = linear(x=x, weight=fp16[{classes},64])
  return y
}}"""
    assert graded(text) == ({"op.odd-output-width": Severity.NOTE} if odd else {})


# Anemll/Anemll anemll/models/llama_model.py: the mirrored row makes layer_norm an RMS norm
def test_the_mirrored_norm_is_not_flagged():
    text = """
main(x: fp16[1,64,1,1]) {
  mirror: fp16[1,64,1,1] = mul(x=x, y=-1.0)
  both: fp16[1,128,1,1] = concat(values=(x, mirror), axis=1)
  normal: fp16[1,128,1,1] = layer_norm(x=both, axes=[1], epsilon=1e-4)
  y: fp16[1,64,1,1] = slice_by_size(x=normal, begin=[0, 0, 0, 0], size=[1, 64, 1, 1])
  return y
}"""
    assert graded(text) == {}


# apple/ml-stable-diffusion#246, #303, #316: a global setting compresses tables and masks
@pytest.mark.parametrize(
    "use",
    [
        "gather(x=w, indices=[1], axis=0)",
        "add(x=x, y=w)",
        "layer_norm(x=x, axes=[1], gamma=w, epsilon=1e-4)",
    ],
)
def test_tables_masks_and_gains_that_were_compressed_are_found(use):
    text = f"""
main(x: fp16[1,64]) {{
  w: fp16[1,64] = constexpr_lut_to_dense(indices=uint4[1,64], lut=fp16[1,1,16,1])
  y: fp16[1,64] = {use}
  return y
}}"""
    assert graded(text)["quant.compressed-table"] is Severity.ERROR
    product = text.replace(f"= {use}", "= linear(x=x, weight=w)")
    assert "quant.compressed-table" not in graded(product)


def test_more_operations_than_were_seen_to_run_are_a_warning():
    lines = "\n".join(f"  y{at}: fp16[1,64] = exp(x=y{at - 1})" for at in range(1, 5_001))
    text = f"main(y0: fp16[1,64]) {{\n{lines}\n  return y5000\n}}"
    assert graded(text) == {"chunk.too-many-ops": Severity.WARNING}
    fewer = text.replace("  y5000: fp16[1,64] = exp(x=y4999)\n", "").replace("y5000", "y4999")
    assert graded(fewer) == {}
    constants = lines.replace("= exp(x=y4999)", "= const()")
    assert graded(f"main(y0: fp16[1,64]) {{\n{constants}\n  return y4999\n}}") == {}


def test_a_state_that_its_author_allows_leaves_warnings_at_most():
    text = gemma3('kv { all: store state, write slice }\n  allow state.update because "it ran"')
    assert not [one for one in linted(text) if one.severity is Severity.ERROR]
