"""Emitters of normalisation."""

import numpy as np

from topoc.lowering.emit.mil.environment import Environment, emits
from topoc.lowering.emit.mil.var import Var
from topoc.lowering.ir import DType
from topoc.lowering.ops.norm import RmsNorm, UnitRmsNorm

SMALLEST = {DType.FP16: float(np.finfo(np.float16).smallest_subnormal), DType.FP32: 0.0}
"""An epsilon below it would round to zero, and a row of zeros would divide by zero."""


@emits(RmsNorm)
def rms_norm(op: RmsNorm, env: Environment) -> Var:
    """The gain stands twice as the norm's gamma: rank 1, which no recipe takes for a matrix."""
    return _mirrored(op, env, gamma=env.weight(op.gain, "twice"))


@emits(UnitRmsNorm)
def unit_rms_norm(op: UnitRmsNorm, env: Environment) -> Var:
    """The same without a gamma."""
    return _mirrored(op, env)


def _mirrored(op: RmsNorm | UnitRmsNorm, env: Environment, **gamma: Var) -> Var:
    """The Neural Engine has layer_norm and no rms_norm; over [x, -x] they agree.

    The doubled row has mean zero, so its variance is the mean square of x.
    """
    x = env[op.x]
    mirrored = env.op("mul", part="mirrored", x=x, y=-1.0)
    doubled = env.op("concat", part="doubled", values=[x, mirrored], axis=op.axis, interleave=False)
    normal = env.op(
        "layer_norm",
        part="normal",
        x=doubled,
        axes=(op.axis,),
        epsilon=max(op.eps, SMALLEST[env.dtype]),
        **gamma,
    )
    size = op.x.shape
    return env.op("slice_by_size", x=normal, begin=(0,) * len(size), size=size)
