"""Packages that the interpreter's tests run, built by coremltools in a process of its own.

    python tests/mil_packages.py FOLDER

Each `op/NAME.mlpackage` holds the one op that `OPS` builds under that name; the others are told
below. Random parameters are saved beside a package as `NAME.npz`.
"""

import logging
import os
import sys
from pathlib import Path

import numpy as np

HIDDEN = ("torch", "sklearn", "transformers")  # coremltools imports them for seconds if it can

# Inputs by name: their shapes and data types.
F, N = "fp32", "int32"
A = {"x": ((2, 3, 4), F)}
AB = {"x": ((2, 3, 4), F), "y": ((3, 1), F)}
IMAGE = {"x": ((1, 6, 5, 4), F)}
AXES = {"axes": [1, -1], "keep_dims": True}


def _unary(name, **more):
    return A, lambda mb, x: getattr(mb, name)(x=x, **more)


def _binary(name):
    return AB, lambda mb, x, y: getattr(mb, name)(x=x, y=y)


def _logical(name):
    def build(mb, x, y):
        return mb.cast(
            x=getattr(mb, name)(x=mb.greater(x=x, y=0.0), y=mb.greater(x=y, y=0.0)), dtype="fp32"
        )

    return AB, build


def _compared(name):
    return {"x": ((5, 4), N), "y": ((4,), N)}, lambda mb, x, y: mb.cast(
        x=getattr(mb, name)(x=x, y=y), dtype="fp32"
    )


def _conv(shape, out, kernel, bias=True, **more):
    def build(mb, x):
        groups = more.get("groups", 1)
        rng = np.random.default_rng(7)
        weight = rng.standard_normal((out, shape[1] // groups, *kernel)).astype(np.float32)
        given = {"bias": rng.standard_normal(out).astype(np.float32)} if bias else {}
        ARRAYS.update(weight=weight, **given)
        return mb.conv(x=x, weight=weight, **given, **more)

    return {"x": (shape, F)}, build


def _param(name, *shapes):
    """Arrays that both the package and its reference have."""
    rng = np.random.default_rng(len(name))
    for at, shape in enumerate(shapes):
        ARRAYS[f"p{at}"] = rng.standard_normal(shape).astype(np.float32)
    return [ARRAYS[f"p{at}"] for at in range(len(shapes))]


def _layer_norm(axes, shape, gains):
    def build(mb, x):
        values = _param("layer_norm", *[gains] * 2) if gains else [None, None]
        given = dict(zip(("gamma", "beta"), values, strict=True)) if gains else {}
        return mb.layer_norm(x=x, axes=axes, epsilon=np.float32(1e-3), **given)

    return {"x": (shape, F)}, build


def _split(**how):
    return IMAGE, lambda mb, x: mb.split(x=x, axis=1, **how)


def _codes(mb, x, **how):
    """Eight bits leave a package as floats."""
    return mb.cast(x=mb.quantize(input=x, **how), dtype="fp32")


def _back(mb, x, scale, **how):
    codes = mb.quantize(input=x, scale=scale, output_dtype="int8", **how)
    return mb.dequantize(input=codes, scale=scale, **how)


STEPS = {"scale": np.float32([0.01, 0.5, 0.007])}
ARRAYS: dict[str, np.ndarray] = {}
OPS = {
    **{name: _binary(name) for name in ("add", "sub", "mul", "maximum", "minimum", "real_div")},
    **{name: _binary(name) for name in ("floor_div", "mod")},
    "pow": ({"x": ((2, 3), F)}, lambda mb, x: mb.pow(x=mb.abs(x=x), y=2.5)),
    **{name: _compared(name) for name in ("equal", "not_equal", "less", "less_equal")},
    **{name: _compared(name) for name in ("greater", "greater_equal")},
    **{name: _logical(name) for name in ("logical_and", "logical_or", "logical_xor")},
    "logical_not": (
        A,
        lambda mb, x: mb.cast(x=mb.logical_not(x=mb.less(x=x, y=0.0)), dtype="fp32"),
    ),
    **{name: _unary(name) for name in ("exp", "exp2", "square", "sin", "cos", "erf", "tanh")},
    **{name: _unary(name) for name in ("sigmoid", "silu", "softplus", "abs", "ceil", "floor")},
    **{name: _unary(name) for name in ("relu", "sign", "identity")},
    "sqrt": (A, lambda mb, x: mb.sqrt(x=mb.abs(x=x))),
    "rsqrt": (A, lambda mb, x: mb.rsqrt(x=mb.abs(x=x), epsilon=0.5)),
    "log": (A, lambda mb, x: mb.log(x=mb.abs(x=x), epsilon=0.5)),
    "inverse": _unary("inverse", epsilon=0.5),
    "gelu_tanh": _unary("gelu", mode="TANH_APPROXIMATION"),
    "gelu_exact": _unary("gelu", mode="EXACT"),
    "gelu_sigmoid": _unary("gelu", mode="SIGMOID_APPROXIMATION"),
    "clip": _unary("clip", alpha=-0.5, beta=0.25),
    "quantize": (A, lambda mb, x: _codes(mb, x, scale=np.float32(0.01), output_dtype="int8")),
    "quantize_axis": (
        A,
        lambda mb, x: _codes(
            mb, x, **STEPS, axis=1, zero_point=np.uint8([100, 3, 0]), output_dtype="uint8"
        ),
    ),
    "dequantize": (A, lambda mb, x: _back(mb, x, np.float32(0.01), zero_point=np.int8(-5))),
    "dequantize_axis": (
        A,
        lambda mb, x: _back(mb, x, **STEPS, axis=-2, zero_point=np.int8([9, -3, 0])),
    ),
    "cast_int32": (A, lambda mb, x: mb.cast(x=mb.mul(x=x, y=3.0), dtype="int32")),
    "select": (
        AB,
        lambda mb, x, y: mb.select(cond=mb.greater(x=x, y=y), a=x, b=mb.mul(x=x, y=10.0)),
    ),
    "reshape": (A, lambda mb, x: mb.reshape(x=x, shape=[4, -1])),
    "expand_dims": _unary("expand_dims", axes=[0, -1]),
    "squeeze": ({"x": ((1, 3, 1), F)}, lambda mb, x: mb.squeeze(x=x, axes=[0])),
    "transpose": _unary("transpose", perm=[2, 0, 1]),
    "concat_0": (A, lambda mb, x: mb.concat(values=[x, mb.mul(x=x, y=2.0)], axis=0)),
    "concat_2": (A, lambda mb, x: mb.concat(values=[x, mb.mul(x=x, y=2.0)], axis=2)),
    "stack": (A, lambda mb, x: mb.stack(values=[x, mb.mul(x=x, y=2.0)], axis=1)),
    "split_even": _split(num_splits=3),
    "split_sizes": _split(split_sizes=[1, 2, 3]),
    "tile": _unary("tile", reps=[2, 1, 3]),
    "pad": _unary("pad", pad=[1, 0, 2, 3], constant_val=1.5),
    "slice_by_size": (
        IMAGE,
        lambda mb, x: mb.slice_by_size(x=x, begin=[0, 2, 0, 0], size=[-1, 3, -1, -1]),
    ),
    "slice_by_size_two": (
        IMAGE,
        lambda mb, x: mb.slice_by_size(x=x, begin=[0, -3, 1, 0], size=[1, 3, 2, -1]),
    ),
    "slice_by_size_begin": (
        {**IMAGE, "begin": ((4,), N)},
        lambda mb, x, begin: mb.slice_by_size(x=x, begin=begin, size=[1, 2, 3, 1]),
    ),
    "slice_by_index": (
        IMAGE,
        lambda mb, x: mb.slice_by_index(
            x=x,
            begin=[0, -4, 1, 9],
            end=[1, -1, 0, 9],
            stride=[1, 2, 1, 1],
            begin_mask=[False, False, False, True],
            end_mask=[False, False, False, True],
            squeeze_mask=[False, False, True, False],
        ),
    ),
    "slice_by_index_begin": (
        {"x": ((4, 3), F), "at": ((2,), N), "to": ((2,), N)},
        lambda mb, x, at, to: mb.slice_by_index(
            x=x,
            begin=at,
            end=to,
            begin_mask=[False, True],
            end_mask=[False, True],
            squeeze_mask=[True, False],
        ),
    ),
    "slice_update": (
        {"x": ((4, 3), F), "u": ((2, 3), F)},
        lambda mb, x, u: mb.slice_update(
            x=x, update=u, begin=[1, 0], end=[3, 0], end_mask=[False, True]
        ),
    ),
    "slice_update_begin": (
        {"x": ((4, 3), F), "u": ((1, 3), F), "at": ((2,), N), "to": ((2,), N)},
        lambda mb, x, u, at, to: mb.slice_update(x=x, update=u, begin=at, end=to),
    ),
    "conv_point": _conv((1, 6, 1, 5), 4, (1, 1), pad_type="valid"),
    "conv_point_no_bias": _conv((1, 6, 2, 3), 4, (1, 1), bias=False, pad_type="valid"),
    "conv_point_batch": _conv((3, 6, 2, 3), 4, (1, 1), pad_type="valid"),
    "conv_point_strided": _conv((1, 6, 4, 4), 4, (1, 1), strides=[2, 2], pad_type="valid"),
    "conv_point_padded": _conv((1, 6, 4, 4), 4, (1, 1), pad_type="custom", pad=[1, 1, 0, 0]),
    "conv_groups": _conv((1, 6, 4, 4), 4, (1, 1), groups=2, pad_type="valid"),
    "conv_custom": _conv((1, 6, 5, 4), 4, (3, 2), pad_type="custom", pad=[1, 2, 0, 1]),
    "conv_same": _conv((1, 6, 5, 4), 4, (3, 2), pad_type="same", strides=[2, 1]),
    "conv_same_lower": _conv((1, 6, 5, 4), 4, (2, 2), pad_type="same_lower"),
    "conv_dilated": _conv((1, 6, 5, 5), 4, (2, 2), pad_type="valid", dilations=[2, 1]),
    "conv_1d": _conv((1, 6, 5), 4, (3,), pad_type="valid"),
    "matmul_gqa": (
        {"x": ((1, 2, 6, 8), F), "y": ((1, 2, 5, 8), F)},
        lambda mb, x, y: mb.matmul(x=x, y=y, transpose_y=True),
    ),
    "matmul_broadcast": (
        {"x": ((2, 3, 4, 5), F), "y": ((3, 5, 2), F)},
        lambda mb, x, y: mb.matmul(x=x, y=y),
    ),
    "matmul_transposed": (
        {"x": ((2, 5, 4), F), "y": ((2, 3, 5), F)},
        lambda mb, x, y: mb.matmul(x=x, y=y, transpose_x=True, transpose_y=True),
    ),
    "matmul_transpose_x": (
        {"x": ((2, 5, 4), F), "y": ((2, 5, 3), F)},
        lambda mb, x, y: mb.matmul(x=x, y=y, transpose_x=True),
    ),
    "linear": (
        {"x": ((2, 5), F)},
        lambda mb, x: mb.linear(
            **dict(zip(("weight", "bias"), _param("linear", (3, 5), (3,)), strict=True)), x=x
        ),
    ),
    "layer_norm_channels": _layer_norm([1], (1, 6, 1, 5), (6,)),
    "layer_norm_bare": _layer_norm([1], (1, 6, 1, 5), None),
    "layer_norm_two": _layer_norm([1, 3], (2, 3, 4, 5), (3, 5)),
    "layer_norm_last": _layer_norm([-1], (2, 5), (5,)),
    "rms_idiom": (
        IMAGE,
        lambda mb, x: mb.slice_by_size(
            x=mb.layer_norm(
                x=mb.concat(values=[x, mb.mul(x=x, y=-1.0)], axis=1),
                axes=[1],
                epsilon=np.float32(1e-6),
            ),
            begin=[0, 0, 0, 0],
            size=[-1, 6, -1, -1],
        ),
    ),
    "softmax": _unary("softmax", axis=1),
    **{name: _unary(name, **AXES) for name in ("reduce_sum", "reduce_mean", "reduce_max")},
    "reduce_min": _unary("reduce_min", axes=[0], keep_dims=False),
    "reduce_sum_all": _unary("reduce_sum"),
    "reduce_sum_int": (
        {"x": ((3, 4), N)},
        lambda mb, x: mb.reduce_sum(x=x, axes=[0], keep_dims=False),
    ),
    "reduce_argmax": _unary("reduce_argmax", axis=1, keep_dims=True),
    "reduce_argmin": _unary("reduce_argmin", axis=-1, keep_dims=False),
    "argmax_tie": (
        {"x": ((2, 7), F)},
        lambda mb, x: mb.reduce_argmax(x=mb.mul(x=x, y=0.0), axis=1),
    ),
    "argmax_blocks": (
        {"x": ((2, 192, 1, 3), F)},
        lambda mb, x: mb.reduce_argmax(x=x, axis=1, keep_dims=True),
    ),
    "argmax_blocks_tie": (
        {"x": ((2, 3, 320, 2), F)},
        lambda mb, x: mb.reduce_argmax(x=mb.sign(x=x), axis=-2, keep_dims=False),
    ),
    "topk": _unary("topk", k=2, axis=-1, ascending=False),
    "topk_ascending": _unary("topk", k=2, axis=1, ascending=True),
    "gather": (
        {"x": ((5, 3), F), "at": ((2, 2), N)},
        lambda mb, x, at: mb.gather(x=x, indices=at, axis=0),
    ),
    "gather_1": (
        {"x": ((2, 4, 3), F), "at": ((2,), N)},
        lambda mb, x, at: mb.gather(x=x, indices=at, axis=1),
    ),
}


def op_program(mb, types, inputs, build, *, function, program):
    """A program of one function from named inputs to what `build` gives."""
    kinds = {"fp32": types.fp32, "fp16": types.fp16, "int32": types.int32}
    given = {name: mb.placeholder(shape, kinds[dtype]) for name, (shape, dtype) in inputs.items()}
    made = program()
    made.add_function("main", fill(mb, function, given, build))
    return made


def fill(mb, function, given, build):
    import coremltools as ct

    with function(given, opset_version=ct.target.iOS18) as made:
        out = build(mb, **made.inputs)
        made.set_outputs(list(out) if isinstance(out, (list, tuple)) else [out])
    return made


def fp16_cases():
    """Programs in fp16, where rounding is seen."""
    half = np.float16
    x = {"x": ((1, 8, 1, 4), "fp16")}
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((4, 8, 1, 1)).astype(half)
    long = rng.standard_normal((5, 600, 1, 1)).astype(half)

    def chain(mb, x):
        return mb.add(x=mb.mul(x=mb.mul(x=x, y=half(0.1), name="first"), y=half(3.0)), y=half(1.0))

    def island(mb, x):
        wide = mb.cast(x=x, dtype="fp32")
        return mb.cast(x=mb.mul(x=wide, y=np.float32(1 / 3), name="wide"), dtype="fp16")

    return {
        "square": ({"x": ((6,), "fp16")}, lambda mb, x: mb.mul(x=x, y=x)),
        "tenth": ({"x": ((64,), "fp16")}, lambda mb, x: mb.mul(x=x, y=half(0.1))),
        "chain": (x, chain),
        "island": (x, island),
        "norm": (x, lambda mb, x: mb.layer_norm(x=x, axes=[1], epsilon=half(1e-3))),
        "softmax": (x, lambda mb, x: mb.softmax(x=x, axis=1)),
        "conv": (
            x,
            lambda mb, x: _save(mb.conv(x=x, weight=weight, pad_type="valid"), weight=weight),
        ),
        "long_conv": (
            {"x": ((1, 600, 1, 3), "fp16")},
            lambda mb, x: _save(mb.conv(x=x, weight=long, pad_type="valid"), weight=long),
        ),
        "matmul": (
            {"x": ((2, 3, 50), "fp16"), "y": ((2, 50, 4), "fp16")},
            lambda mb, x, y: mb.matmul(x=x, y=y),
        ),
        "moved": (
            x,
            lambda mb, x: mb.transpose(x=mb.concat(values=[x, x], axis=1), perm=[3, 1, 2, 0]),
        ),
    }


def _save(result, **arrays):
    ARRAYS.update(arrays)
    return result


def weight_cases():
    """Programs that multiply an identity by a compressed weight, so that the output shows it."""
    from coremltools.converters.mil.mil import types
    from coremltools.converters.mil.mil.types.type_mapping import nptype_from_builtin

    rng = np.random.default_rng(5)

    def lut(bits, groups, shape=(8, 6), scalar=np.float16):
        indices = rng.integers(0, 2**bits, shape).astype(np.uint8)
        kind = nptype_from_builtin(getattr(types, f"uint{bits}"))
        table = rng.standard_normal((*groups, 2**bits, 1)).astype(scalar)

        def build(mb, x):
            ARRAYS.update(indices=indices, lut=table)
            dense = mb.constexpr_lut_to_dense(indices=indices.view(kind), lut=table)
            return mb.add(x=x, y=dense)

        return {"x": (shape, "fp16" if scalar is np.float16 else "fp32")}, build

    def vector(mb, x):
        indices = rng.integers(0, 4, (4, 6)).astype(np.uint8)
        table = rng.standard_normal((2, 1, 4, 2)).astype(np.float16)
        ARRAYS.update(indices=indices, lut=table)
        kind = nptype_from_builtin(types.uint2)
        return mb.add(
            x=x, y=mb.constexpr_lut_to_dense(indices=indices.view(kind), lut=table, vector_axis=0)
        )

    def blocks(kind, low, high, many, offset=False):
        data = rng.integers(low, high, (8, 6)).astype(np.uint8 if low == 0 else np.int8)
        scale = rng.standard_normal(many).astype(np.float16)
        shift = rng.integers(low, high, many).astype(data.dtype)
        held = nptype_from_builtin(getattr(types, kind))

        def build(mb, x):
            ARRAYS.update(data=data, scale=scale, **({"offset": shift} if offset else {}))
            given = {"offset": shift.view(held)} if offset else {}
            return mb.add(
                x=x,
                y=mb.constexpr_blockwise_shift_scale(data=data.view(held), scale=scale, **given),
            )

        return {"x": ((8, 6), "fp16")}, build

    def scaled_lut(mb, x):
        indices = rng.integers(0, 16, (8, 6)).astype(np.uint8)
        table = rng.integers(-100, 100, (1, 1, 16, 1)).astype(np.int8)
        scale = rng.standard_normal((8, 1)).astype(np.float16)
        ARRAYS.update(indices=indices, lut=table, scale=scale)
        inner = mb.constexpr_lut_to_dense(
            indices=indices.view(nptype_from_builtin(types.uint4)), lut=table
        )
        return mb.add(x=x, y=mb.constexpr_blockwise_shift_scale(data=inner, scale=scale))

    return {
        "lut1": lut(1, (1, 1)),
        "lut2_grouped": lut(2, (4, 1)),
        "lut3": lut(3, (1, 1), (9, 5)),
        "lut4": lut(4, (1, 1)),
        "lut4_odd": lut(4, (1, 1), (5, 5)),
        "lut4_grouped": lut(4, (2, 1)),
        "lut4_columns": lut(4, (2, 3)),
        "lut6": lut(6, (1, 1)),
        "lut8": lut(8, (2, 1)),
        "lut4_fp32": lut(4, (2, 1), scalar=np.float32),
        "lut_vector": ({"x": ((8, 6), "fp16")}, vector),
        "int8": blocks("int8", -128, 128, (8, 1)),
        "int8_blocks": blocks("int8", -128, 128, (2, 3)),
        "uint8_offset": blocks("uint8", 0, 256, (8, 1), offset=True),
        "int4": blocks("int4", -8, 8, (4, 2)),
        "uint4_offset": blocks("uint4", 0, 16, (8, 3), offset=True),
        "scaled_lut": ({"x": ((8, 6), "fp16")}, scaled_lut),
    }


def state_case():
    """A cache of four slots: each call writes its row where it is told, and gives the sum."""

    def build(mb, x, at, to, cache):
        before = mb.read_state(input=cache, name="before")
        after = mb.slice_update(x=before, update=x, begin=at, end=to)
        held = mb.coreml_update_state(state=cache, value=after, name="held")
        return mb.reduce_sum(x=held, axes=[0], keep_dims=False), mb.identity(x=before)

    return build


def build_all(folder: Path) -> None:
    os.environ["TQDM_DISABLE"] = "1"
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    sys.modules.update(dict.fromkeys(HIDDEN))
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813 - as everyone calls it
    from coremltools.converters.mil.mil import Function, Program, types

    def save(program, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT32,
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
        ).save(str(path))
        if ARRAYS:
            np.savez(path.with_suffix(".npz"), **ARRAYS)
        ARRAYS.clear()

    for kind, cases in (("op", OPS), ("fp16", fp16_cases()), ("weight", weight_cases())):
        for name, (inputs, build) in cases.items():
            save(
                op_program(mb, types, inputs, build, function=Function, program=Program),
                folder / kind / f"{name}.mlpackage",
            )

    given = {
        "x": mb.placeholder((1, 3), types.fp16),
        "at": mb.placeholder((2,), types.int32),
        "to": mb.placeholder((2,), types.int32),
        "cache": mb.state_tensor_placeholder((4, 3), types.fp16),
    }
    program = Program()
    program.add_function("main", fill(mb, Function, given, state_case()))
    save(program, folder / "state.mlpackage")
    save(two_functions(mb, types, Function, Program), folder / "two.mlpackage")


def two_functions(mb, types, function, program):
    """`decode` and `prefill` over one weight, which is stored once."""
    rng = np.random.default_rng(11)
    weight = rng.standard_normal((16, 8, 1, 1)).astype(np.float16)
    indices = rng.integers(0, 256, (16, 16, 1, 1)).astype(np.uint8)
    table = rng.standard_normal((1, 1, 1, 1, 256, 1)).astype(np.float16)
    ARRAYS.update(weight=weight, indices=indices, lut=table)

    def build(mb, x):
        dense, packed, looked = (mb.const(val=one) for one in (weight, indices, table))
        for at, one in enumerate((dense, packed, looked)):
            one.op.weight_id = f"shared{at}"
        lut = mb.constexpr_lut_to_dense(indices=packed, lut=looked)
        hidden = mb.conv(x=x, weight=dense, pad_type="valid")
        return mb.conv(x=hidden, weight=lut, pad_type="valid", name="y")

    made = program()
    for name, length in (("decode", 1), ("prefill", 4)):
        given = {"x": mb.placeholder((1, 8, 1, length), types.fp16)}
        made.add_function(name, fill(mb, function, given, build))
    made.default_function_name = "decode"
    made.export_as_multifunction = True
    return made


if __name__ == "__main__":
    build_all(Path(sys.argv[1]))
