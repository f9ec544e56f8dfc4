"""What is done to a weight: the compiler's own form of the schemes of a topology."""

from attrs import field, frozen, validators

from topoc.dsl.model import Scheme
from topoc.dsl.plain import Plain

BITS = (1, 2, 3, 4, 6, 8)


@frozen(eq=False, repr=False)
class Palettize(Plain):
    """A table of 2^bits numbers for every `group` output channels, and an index for each weight."""

    bits: int = field(validator=validators.in_(BITS))
    group: int | None = None  # None: one table for the whole tensor
    lut: str = field(default="fp16", validator=validators.in_(("fp16", "int8")))


@frozen(eq=False, repr=False)
class Linear(Plain):
    """Whole steps of a scale: int8 for each output channel or the tensor, int4 for each block."""

    bits: int = field(validator=validators.in_((4, 8)))
    per: str = field(validator=validators.in_(("channel", "tensor", "block")))
    block: int = 0  # input channels that share a scale


@frozen(eq=False, repr=False)
class Prune(Plain):
    """The n least of every m weights along the inputs become zero, and are not stored."""

    n: int
    m: int
    then: Palettize | None = None


Recipe = Palettize | Linear | Prune


def recipe(schemes: tuple[Scheme, ...]) -> Recipe | None:
    """The recipe of a tensor's schemes as `resolve` leaves them; None for `none`."""
    first = schemes[0]
    given = dict(first.arguments)
    if first.name == "prune":
        then = recipe(schemes[1:]) if len(schemes) > 1 else None
        if isinstance(then, Palettize | None):
            return Prune(int(given["n"]), int(given["m"]), then)
        message = "`prune` goes with `palettize` or nothing"
        raise ValueError(message)
    if first.name == "palettize":
        group = None if given["group"] == "per_tensor" else int(given["group"])
        return Palettize(int(given["bits"]), group, str(given.get("lut", "fp16")))
    if first.name == "int8":
        return Linear(8, "tensor" if given["per"] == "tensor" else "channel")
    return Linear(4, "block", int(given["block"])) if first.name == "int4" else None
