"""Milliseconds as people read them: the number, and half the interval."""

from topoc.lowering.cost import Change, Estimate


def spelled(one: Estimate) -> str:
    """30.9 ± 4.4 ms."""
    return f"{one.ms:.1f} ± {one.high - one.ms:.1f} ms"


def rate(one: Estimate, tokens: int) -> str:
    """Tokens a second, and the interval of those."""
    low, high = 1000 * tokens / one.high, 1000 * tokens / one.low if one.low else None
    return f"{1000 * tokens / one.ms:.1f} tok/s ({low:.1f} to {f'{high:.1f}' if high else '…'})"


def changed(one: Change) -> str:
    """-0.6 ms (-3.8 to +2.6): not resolved."""
    told = f"{one.ms:+.1f} ms ({one.low:+.1f} to {one.high:+.1f})"
    return told if one.resolved else f"{told}: the data do not resolve it"
