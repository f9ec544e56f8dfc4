"""Emitters of normalisation."""

from typing import Any

import numpy as np

from topoc.lowering.emit.mil.environment import Environment, emits
from topoc.lowering.ir import DType
from topoc.lowering.ops.norm import RmsNorm

SMALLEST = {DType.FP16: float(np.finfo(np.float16).smallest_subnormal), DType.FP32: 0.0}
"""An epsilon below it would round to zero, and a row of zeros would divide by zero."""


@emits(RmsNorm)
def rms_norm(op: RmsNorm, env: Environment) -> Any:
    """The Neural Engine has layer_norm and no rms_norm; over [x, -x] they agree.

    The doubled row has mean zero, so its variance is the mean square of x. The gain stands twice
    as the norm's gamma: rank 1, which no compression recipe takes for a matrix.
    """
    x = env[op.x]
    mirrored = env.op("mul", part="mirrored", x=x, y=-1.0)
    doubled = env.op("concat", part="doubled", values=[x, mirrored], axis=op.axis, interleave=False)
    normal = env.op(
        "layer_norm",
        part="normal",
        x=doubled,
        axes=(op.axis,),
        gamma=env.weight(op.gain, "twice"),
        epsilon=max(op.eps, SMALLEST[env.dtype]),
    )
    size = op.x.shape
    return env.op("slice_by_size", x=normal, begin=(0,) * len(size), size=size)
