"""One kernel for each MIL op type; importing this fills the table."""

from topoc.lowering.interpret.kernels import (
    conv,
    elementwise,
    layout,
    lookup,
    matmul,
    norm,
    quantize,
    reduce,
    slices,
    state,
)
from topoc.lowering.interpret.kernels.kernel import KERNELS

MODULES = (elementwise, layout, slices, conv, matmul, norm, quantize, reduce, lookup, state)

__all__ = ["KERNELS", "MODULES"]
