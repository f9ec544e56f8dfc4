"""Emitters of quantised activations."""

from topoc.lowering.emit.mil.environment import Environment, emits
from topoc.lowering.emit.mil.var import Var
from topoc.lowering.ops.quantize import QuantizeDequantize


@emits(QuantizeDequantize)
def quantize_dequantize(op: QuantizeDequantize, env: Environment) -> Var:
    """Two ops of one scale, which stands in the program: there and back."""
    codes = env.op("quantize", part="codes", input=env[op.x], scale=op.scale, output_dtype="int8")
    return env.op("dequantize", input=codes, scale=op.scale)
