"""Arithmetic on each element."""

from typing import ClassVar, Literal

from attrs import field, frozen
from attrs.validators import gt

from topoc.lowering.ir import Op, TensorType, Value, Weight


@frozen(eq=False, repr=False)
class Add(Op):
    """The sum of two values of one shape."""

    mnemonic: ClassVar[str] = "add"
    x: Value
    y: Value

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type


@frozen(eq=False, repr=False)
class Mul(Op):
    """The product of two values of one shape."""

    mnemonic: ClassVar[str] = "mul"
    x: Value
    y: Value

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type


@frozen(eq=False, repr=False)
class Copy(Op):
    """The same value under a name of its own, for an output beside another."""

    mnemonic: ClassVar[str] = "copy"
    x: Value

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type


@frozen(eq=False, repr=False)
class Scale(Op):
    """`x` times a constant."""

    mnemonic: ClassVar[str] = "scale"
    x: Value
    factor: float

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type


@frozen(eq=False, repr=False)
class ScaleBy(Op):
    """`x` times a number of the checkpoint, a weight of one element."""

    mnemonic: ClassVar[str] = "scale_by"
    x: Value
    factor: Weight

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type


@frozen(eq=False, repr=False)
class Activation(Op):
    """The non-linearity of the MLP: GELU in its tanh form, or SiLU."""

    mnemonic: ClassVar[str] = "activation"
    x: Value
    kind: Literal["gelu_tanh", "silu"]

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type


@frozen(eq=False, repr=False)
class Softcap(Op):
    """cap * tanh(x / cap): a bound on `x` that is smooth."""

    mnemonic: ClassVar[str] = "softcap"
    x: Value
    cap: float = field(validator=gt(0.0))

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type
