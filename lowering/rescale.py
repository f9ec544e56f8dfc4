"""Which powers of two keep a checkpoint's activations inside fp16, from measured ranges."""

from math import ceil, floor, log2, sqrt

from attrs import field, frozen

from topoc.dsl.plain import Plain

FP16_MAX = 65504.0
FP16_NORMAL = 2.0**-14  # the smallest normal number; accelerators may flush what is below
SQUARE_MAX = 255.0  # its square still fits fp16, if hardware squares in fp16 inside a norm
HEADROOM = 4.0  # other prompts may swing wider than the measured ones
EPSILON_MATTERS = 1024.0  # times epsilon: a mean square below it shows an epsilon that is off

BRANCHES = ("o", "down", "ple_projection")
"""The projections that a norm may follow before the residual stream takes their sum in."""


@frozen(kw_only=True, eq=False, repr=False)
class Swing(Plain):
    """What a norm reads, over all positions."""

    peak: float  # greatest |x|
    least: float  # smallest mean square over the channels of a position

    def joined(self, other: "Swing") -> "Swing":
        """Over two places."""
        return Swing(peak=max(self.peak, other.peak), least=min(self.least, other.least))


@frozen(kw_only=True, eq=False, repr=False)
class Range(Plain):
    """What was measured at one layer, or at the final norm, which has no branches."""

    stream: Swing  # of the residual stream, where norms read it
    left: float  # greatest |x| of the stream after the layer
    branches: tuple[Swing, ...] = ()  # of `BRANCHES`, if norms read them

    def exponents(self) -> tuple[int, int]:
        """The least and the greatest power of two that suit the stream.

        Where both can't be had, what would overflow outranks what would underflow.
        """
        fits = min(SQUARE_MAX / self.stream.peak, FP16_MAX / HEADROOM / self.left)
        highest = floor(log2(fits))
        if self.stream.least == 0.0:  # a row of zeros stays zero at any scale
            return highest, highest
        return min(ceil(log2(sqrt(FP16_NORMAL / self.stream.least))), highest), highest


@frozen(kw_only=True, eq=False, repr=False)
class Scales(Plain):
    """The powers of two for each layer; `residual` ends with the final norm's."""

    residual: tuple[float, ...]
    branches: tuple[tuple[float, ...], ...] = field(default=())

    @property
    def change(self) -> bool:
        """Whether any value becomes another one."""
        return any(one != 1.0 for part in (self.residual, *self.branches) for one in part)

    @classmethod
    def none(cls, layers: int) -> "Scales":
        """Every value as it is."""
        return cls(residual=(1.0,) * (layers + 1), branches=((),) * layers)


def scales_for(ranges: tuple[Range, ...], eps: float) -> Scales:
    """What the ranges of a checkpoint ask for."""
    branches = tuple(tuple(_lift(swing, eps) for swing in one.branches) for one in ranges[:-1])
    return Scales(residual=residual_scales(ranges), branches=branches)


def residual_scales(ranges: tuple[Range, ...]) -> tuple[float, ...]:
    """One scale a range: 1 throughout where fp16 holds the stream, else as few switches as can be.

    Neighbours share a scale for as long as one power of two suits them all. Within what suits, the
    greatest is taken: gains and epsilons are multiplied by it, and lose bits where they come out
    subnormal. The peak is BOS's, and the same after whatever follows, so it needs no further room.
    """
    if max(max(one.stream.peak, one.left) for one in ranges) * HEADROOM <= FP16_MAX:
        return (1.0,) * len(ranges)
    exponents: list[int] = []
    low, high, length = *ranges[0].exponents(), 0
    for one in ranges:
        least, greatest = one.exponents()
        if max(low, least) > min(high, greatest):
            exponents += [high] * length
            low, high, length = least, greatest, 0
        low, high, length = max(low, least), min(high, greatest), length + 1
    exponents += [high] * length
    return tuple(2.0**exponent for exponent in exponents)


def _lift(swing: Swing, eps: float) -> float:
    """The power of two that makes a branch's epsilon normal, as far as its peak leaves room."""
    if eps >= FP16_NORMAL or eps == 0.0 or swing.least >= EPSILON_MATTERS * eps:
        return 1.0
    wanted = ceil(log2(sqrt(FP16_NORMAL / eps)))
    room = wanted if swing.peak == 0.0 else floor(log2(SQUARE_MAX / swing.peak))
    return 2.0 ** max(0, min(wanted, room))
