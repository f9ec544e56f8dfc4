"""Bytes as people read them."""

UNITS = ("B", "kB", "MB", "GB")


def size(count: int) -> str:
    """In the largest unit that leaves a number of at least one, powers of 1000."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {UNITS[unit]}" if unit == 0 else f"{value:.1f} {UNITS[unit]}"
