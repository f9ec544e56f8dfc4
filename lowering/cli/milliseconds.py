"""Milliseconds as people and programs read them."""

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:  # a plan without costs loads none of it
    from topoc.lowering.cost.predict import Change, Estimate


class Ms(TypedDict):
    """Predicted milliseconds; nine of ten figures lie between low and high if the fit is right."""

    ms: float
    low: float
    high: float
    outside: list[str]  # what the fit has not seen, in words


class Difference(TypedDict):
    """Milliseconds more than another call; resolved where the interval leaves zero out."""

    ms: float
    low: float
    high: float
    resolved: bool


def milliseconds(one: "Estimate") -> Ms:
    """An estimate as JSON has it, to a thousandth of a ms."""
    low, high = round(one.low, 3), round(one.high, 3)
    return Ms(ms=round(one.ms, 3), low=low, high=high, outside=list(one.outside))


def difference(one: "Change") -> Difference:
    """A change as JSON has it."""
    low, high = round(one.low, 3), round(one.high, 3)
    return Difference(ms=round(one.ms, 3), low=low, high=high, resolved=one.resolved)


def spelled(one: Ms) -> str:
    """30.9 ± 4.4 ms, with a mark where the fit has not seen the like."""
    beyond = " beyond the fit" if one["outside"] else ""
    return f"{one['ms']:.1f} ± {one['high'] - one['ms']:.1f} ms{beyond}"


def rate(one: Ms, tokens: int) -> str:
    """Tokens a second, and the interval of those."""
    low = f"{1000 * tokens / one['high']:.1f}"
    high = f"to {1000 * tokens / one['low']:.1f}" if one["low"] else "or more"
    return f"{1000 * tokens / one['ms']:.1f} tok/s ({low} {high})"


def apart(one: Difference) -> str:
    """-0.6 ms (-3.8 to +2.6), and whether the data resolve it."""
    if one["low"] == one["high"] == 0:
        return "the same ms, for all that costs is the same"
    told = f"{one['ms']:+.1f} ms ({one['low']:+.1f} to {one['high']:+.1f})"
    rest = ": the interval holds zero, and the data do not resolve it"
    return told if one["resolved"] else told + rest
