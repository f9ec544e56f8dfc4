"""Values on their way through eight bits."""

from typing import ClassVar

from attrs import field, frozen
from attrs.validators import gt

from topoc.lowering.ir import Op, TensorType, Value


@frozen(eq=False, repr=False)
class QuantizeDequantize(Op):
    """`x` as int8 keeps it: whole steps of a scale, half to even, from -128 to 127 of them."""

    mnemonic: ClassVar[str] = "quantize_dequantize"
    x: Value
    scale: float = field(validator=gt(0.0))

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type
