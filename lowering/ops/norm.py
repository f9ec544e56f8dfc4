"""Normalisation."""

from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge

from topoc.lowering.ir import Op, TensorType, Value, Weight


@frozen(eq=False, repr=False)
class RmsNorm(Op):
    """Divide `x` by its root mean square over one axis, then scale by a gain along that axis."""

    mnemonic: ClassVar[str] = "rms_norm"
    x: Value
    gain: Weight
    eps: float = field(validator=ge(0.0))
    axis: int

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type


@frozen(eq=False, repr=False)
class UnitRmsNorm(Op):
    """Divide `x` by its root mean square over one axis."""

    mnemonic: ClassVar[str] = "unit_rms_norm"
    x: Value
    eps: float = field(validator=ge(0.0))
    axis: int

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type
