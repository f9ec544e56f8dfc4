"""What a kernel is: it prepares one op, once, into a function over its operands."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.interpret.constants import Constants
from topoc.lowering.interpret.function import Binding, Feature, Op

Compute = Callable[..., Any]  # from tensors to one tensor, or to a tuple of them
_NEEDED = object()


@frozen
class Bound:
    """A prepared op: what to call, and on which values."""

    compute: Compute
    operands: tuple[Binding, ...]
    state: str | None = None  # the state that takes the result, of an op without outputs


@frozen
class Call:
    """One op while it is prepared."""

    op: Op
    constants: Constants
    types: Mapping[str, Feature]  # of every named value of the function
    place: Place

    def has(self, name: str) -> bool:
        """Whether the op is given this operand."""
        return bool(self.op.inputs.get(name))

    def operand(self, name: str) -> Binding:
        """The one value bound to this name."""
        bound = self.op.inputs.get(name, ())
        if len(bound) != 1:
            raise refusal(self, f"without a single `{name}`")
        return bound[0]

    def operands(self, name: str) -> tuple[Binding, ...]:
        """All values bound to this name."""
        return self.op.inputs.get(name, ())

    def bind(self, compute: Compute, *names: str) -> Bound:
        """The function over the operands of these names."""
        return Bound(compute, tuple(self.operand(name) for name in names))

    def fixed(self, name: str, default: Any = _NEEDED) -> Any:
        """A parameter that must be known beforehand, as plain Python; its type is the op's own."""
        if not self.has(name) and default is not _NEEDED:
            return default
        binding = self.operand(name)
        if not self.constants.holds(binding):
            raise refusal(self, f"with a `{name}` that is computed")
        return self.constants.array(binding, self.place).tolist()

    def is_fixed(self, name: str) -> bool:
        """Whether the operand is a constant."""
        return self.constants.holds(self.operand(name))

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The declared shape of an operand."""
        binding = self.operand(name)
        if isinstance(binding, str):
            return self.types[binding].shape
        return self.constants.array(binding, self.place).shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The declared shape of the first result."""
        return self.op.outputs[0].shape


def refusal(call: Call, how: str) -> TopocError:
    """Say that this use of an op has no kernel."""
    op = call.op
    message = f"op `{op.name}` is a `{op.type}` {how}, which is not interpreted"
    return TopocError(error("bundle.op-not-interpreted", message, call.place))


@frozen
class Kernel:
    """How to prepare one op type; arithmetic rounds in fp16, moving values about does not."""

    prepare: Callable[[Call], Bound]
    arithmetic: bool


KERNELS: dict[str, Kernel] = {}


def kernel(
    *types: str, arithmetic: bool = False
) -> Callable[[Callable[[Call], Bound]], Callable[[Call], Bound]]:
    """Enter a function into the table under these op types."""

    def enter(prepare: Callable[[Call], Bound]) -> Callable[[Call], Bound]:
        for name in types:
            if name in KERNELS:
                message = f"two kernels for `{name}`"
                raise ValueError(message)
            KERNELS[name] = Kernel(prepare, arithmetic)
        return prepare

    return enter


def rounded(compute: Compute) -> Compute:
    """The same function with its result rounded to fp16 once."""

    def compute_and_round(*operands: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = compute(*operands).half().float()
        return result

    return compute_and_round
