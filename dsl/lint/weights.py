"""How the weights of a program are compressed: palettes, scales, and sparsity."""

from collections.abc import Iterator

from topoc.dsl.lint.mil import Function, Literal, Op, Operand, Package
from topoc.dsl.lint.trace import CASTS, is_depthwise, origin, readers

PALETTE = "constexpr_lut_to_dense"
SCALED = "constexpr_blockwise_shift_scale"
AFFINE = "constexpr_affine_dequantize"
SPARSE = "constexpr_sparse_to_dense"
SPARSE_PALETTE = "constexpr_lut_to_sparse"
SPARSE_SCALED = "constexpr_sparse_blockwise_shift_scale"
# What a weight is to the ops that read it.
PRODUCTS = frozenset({"conv", "conv_transpose", "linear", "matmul", "einsum"})


def palette_groups(function: Function, op: Op) -> tuple[int, ...]:
    """How many palettes an op has along each axis; nothing where it has one."""
    shape = function.type_of(op.operand("lut")).shape
    return shape[:-2] if len(shape) > 2 else ()


def scale_groups(function: Function, op: Op) -> tuple[int, ...]:
    """How many scales an op has along each axis."""
    return function.type_of(op.operand("scale")).shape


def split_axes(groups: tuple[int, ...]) -> int:
    """How many axes are in more than one group."""
    return sum(one > 1 for one in groups)


def data_of(function: Function, op: Op) -> Op | None:
    """The op that makes the data of a scaled weight, if it is compressed once more."""
    maker = function.maker(op.operand("data"))
    return maker if maker is not None and maker.kind != "const" else None


def depthwise_palettes(function: Function) -> Iterator[Op]:
    """Convolutions with a group for each channel, whose kernel comes from a palette."""
    for conv in function.of("conv"):
        maker = function.maker(conv.operand("weight"))
        if maker is not None and maker.kind == PALETTE and is_depthwise(function, conv):
            yield conv


def users(function: Function, op: Op) -> Iterator[tuple[str, Op]]:
    """The ops that read a weight and the parameter that it is bound to, past views of it."""
    for reader in readers(function, op.result, CASTS):
        for key, bound in reader.inputs.items():
            if any(isinstance(one, str) for one in bound) and _binds(function, bound, op):
                yield key, reader


def _binds(function: Function, bound: tuple[Operand, ...], op: Op) -> bool:
    return any(one == op.result or origin(function, one, CASTS) == op.result for one in bound)


def expanded_bytes(package: Package) -> int:
    """The weights of a package as fp16, each counted once however many functions share it."""
    sizes: dict[object, int] = {}
    for function in package.functions:
        for op in function.ops:
            if op.constant and op.type.bits:
                sizes[_identity(function, op)] = 2 * op.type.elements
            elif not op.constant:  # weights may also stand in the place of operands
                sizes |= {one.stored: 2 * one.type.elements for one in _stored(op)}
    return sum(sizes.values())


def _stored(op: Op) -> Iterator[Literal]:
    for bound in op.inputs.values():
        yield from (one for one in bound if isinstance(one, Literal) and one.stored is not None)


def _identity(function: Function, op: Op) -> object:
    """Where a weight is stored; its own name where it is not in a file."""
    literals = [op.value, *(one for bound in op.inputs.values() for one in bound)]
    for one in literals:
        known = one if not isinstance(one, str) else function.literal(one)
        if known is not None and known.stored is not None:
            return known.stored
    return (function.name, op.result)
