"""Packages that hold compressed weights, built and decompressed by coremltools.

    python tests/constexpr_packages.py FOLDER

Reads `NAME.npz`, whose arrays are called PARAMETER:DTYPE; writes `NAME.mlpackage`, in which a
convolution has the weight `w`, and `NAME.npy`, what coremltools itself makes of the constants.
"""

import logging
import os
import sys
from pathlib import Path

import numpy as np

HIDDEN = ("torch", "sklearn", "transformers")  # coremltools imports them for seconds if it can


def build_all(folder):
    os.environ["TQDM_DISABLE"] = "1"
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    sys.modules.update(dict.fromkeys(HIDDEN))
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813 - as everyone calls it
    from coremltools.converters.mil.mil import types

    for path in sorted(folder.glob("*.npz")):
        save(path, ct, mb, types)


def save(path, ct, mb, types):
    parts = dict(read(path, types))
    columns = next(one.shape[1] for one in parts.values() if one.ndim == 4)
    made = {}

    @mb.program(
        input_specs=[mb.TensorSpec((1, columns, 1, 2), types.fp16)], opset_version=ct.target.iOS18
    )
    def program(x):
        made["w"] = weight(mb, parts)
        return mb.conv(x=x, weight=made["w"], pad_type="valid", name="y")

    np.save(path.with_suffix(".npy"), decompressed(made["w"].op))
    ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=ct.target.iOS18,
        pass_pipeline=ct.PassPipeline.EMPTY,
        skip_model_load=True,
    ).save(str(path.with_suffix(".mlpackage")))


def decompressed(op):
    """By coremltools; it can't follow a table that is itself compressed, so that one goes first."""
    if op.op_type == "constexpr_lut_to_dense" and op.lut.val is None:
        return op.decompress(op.indices.val, op.lut.op.materialized_val_inference(), None)
    return op.materialized_val_inference()


def read(path, types):
    """The constants of a file, sub-byte ones with coremltools' own element types."""
    with np.load(path) as arrays:
        for name in arrays:
            parameter, _, dtype = name.partition(":")
            kind = types.nptype_from_builtin(types.string_to_builtin(dtype))
            yield parameter, arrays[name].view(kind)


def weight(mb, parts):
    """The weight as the op or ops make it that these constants are for."""
    if "data" in parts:
        return mb.constexpr_blockwise_shift_scale(**parts, name="w")
    if "nonzero_data" in parts:
        return mb.constexpr_sparse_to_dense(**parts, name="w")
    if "lut_scale" in parts:
        steps, scale = parts["lut"], parts.pop("lut_scale")
        parts["lut"] = mb.constexpr_blockwise_shift_scale(data=steps, scale=scale)
    if "indices" in parts:
        return mb.constexpr_lut_to_dense(**parts, name="w")
    mask, kept = mb.constexpr_lut_to_sparse(**parts)
    return mb.constexpr_sparse_to_dense(nonzero_data=kept, mask=mask, name="w")


if __name__ == "__main__":
    build_all(Path(sys.argv[1]))
