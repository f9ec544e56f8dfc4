"""Milliseconds from features: a number, the interval that it lies in, and what it rests on.

An interval holds nine of ten figures that a device would give, if the model is right. It widens
with the doubt about each coefficient, so that a chunk unlike the measured ones gets a wide one.
Plain arithmetic on stored coefficients: `topoc plan` calls it and may load no arrays.
"""

from collections.abc import Sequence
from math import sqrt

from attrs import frozen

from topoc.dsl.plain import Plain
from topoc.lowering.cost.features import Features
from topoc.lowering.cost.profile import BASE, LATER, Profile

# Student's t, 95 % one-sided, at 1, 2, … degrees of freedom; beyond the last, the normal value.
_T = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
    *(1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697),
)
_NORMAL = 1.645
_SLACK = 0.01  # of a range's ends: rounding is no extrapolation

Vector = dict[str, float]


@frozen(kw_only=True, eq=False, repr=False)
class Estimate(Plain):
    """Milliseconds; `low` to `high` is the interval, `outside` what the fit has not seen."""

    ms: float
    low: float
    high: float
    outside: tuple[str, ...] = ()


@frozen(kw_only=True, eq=False, repr=False)
class Change(Plain):
    """The milliseconds that one call takes more than another."""

    ms: float
    low: float
    high: float

    @property
    def resolved(self) -> bool:
        """Whether the data tell which of the two is faster."""
        return self.low > 0 or self.high < 0


def vector(features: Features) -> Vector:
    """What each coefficient of a chunk is multiplied with."""
    sizes = {name: features.megabytes(name) for name in ("weights", "kv", "attended", "state")}
    return {"dispatch": 1.0, **sizes, "work": features.work}


def chunk_ms(profile: Profile, features: Features) -> float:
    """The milliseconds of one chunk's call, without more."""
    found = vector(features)
    return sum(profile.coefficients.get(name, 0.0) * found[name] for name in found)


_ATTO = 10**9  # attoseconds a byte, of a coefficient of ms a MB


def chunk_time(profile: Profile, features: Features) -> int:
    """The same in attoseconds: whole numbers, which add up alike in any order."""
    cost = profile.coefficients
    sizes = (features.weights, features.kv, features.attended, features.state)
    named = zip(("weights", "kv", "attended", "state"), sizes, strict=True)
    moved = sum(round(cost.get(name, 0.0) * _ATTO) * size for name, size in named)
    products = features.elements * (features.tokens - 1)
    work = round(cost.get("work", 0.0) * _ATTO) * products // 1000
    return attoseconds(cost["dispatch"]) + moved + work


def attoseconds(ms: float) -> int:
    """Milliseconds in whole attoseconds."""
    return round(ms * _ATTO) * 10**6


def estimate(profile: Profile, features: Features) -> Estimate:
    """One chunk's call."""
    return _estimate(profile, vector(features), 1, tuple(outside(profile, features)))


def call(profile: Profile, chunks: Sequence[Features]) -> Estimate:
    """A call of the host through all its chunks, the host's own time included."""
    notes = [note for one in chunks for note in outside(profile, one)]
    return _estimate(profile, _call(chunks), len(chunks), tuple(dict.fromkeys(notes)))


def change(profile: Profile, before: Sequence[Features], after: Sequence[Features]) -> Change:
    """What a call takes more than another; chunks that both have cancel, doubts and all."""
    rest = list(after)
    gone = []
    for one in before:
        if one in rest:
            rest.remove(one)
        else:
            gone.append(one)
    here, there = _call(rest), _call(gone)
    found = {name: here[name] - there[name] for name in here}
    middle, half = _middle(profile, found), _half(profile, found, len(rest) + len(gone))
    return Change(ms=middle, low=middle - half, high=middle + half)


def _call(chunks: Sequence[Features]) -> Vector:
    summed = dict.fromkeys(("dispatch", "weights", "kv", "attended", "state", "work"), 0.0)
    for one in chunks:
        for name, value in vector(one).items():
            summed[name] += value
    return {**summed, "host": 1.0}


def _estimate(profile: Profile, found: Vector, chunks: int, notes: tuple[str, ...]) -> Estimate:
    middle, half = _middle(profile, found), _half(profile, found, chunks)
    return Estimate(ms=middle, low=max(0.0, middle - half), high=middle + half, outside=notes)


def _middle(profile: Profile, found: Vector) -> float:
    return sum(profile.coefficients.get(name, 0.0) * value for name, value in found.items())


def _half(profile: Profile, found: Vector, chunks: int) -> float:
    """Half an interval: the noise of each chunk's figure and the doubt about each coefficient."""
    base = [found[name] for name in BASE]
    doubt = sum(
        a * b * value
        for a, row in zip(base, profile.covariance, strict=True)
        for b, value in zip(base, row, strict=True)
    )
    doubt += sum(profile.variance.get(name, 0.0) * found.get(name, 0.0) ** 2 for name in LATER)
    return quantile(profile.freedom) * sqrt(chunks * profile.sigma**2 + max(doubt, 0.0))


def quantile(freedom: int) -> float:
    """Student's t at 95 %, one-sided."""
    return _T[freedom - 1] if freedom <= len(_T) else _NORMAL


_UNITS = {"weights": " MB", "kv": " MB", "attended": " MB", "state": " MB"}
_NAMES = {
    "weights": "weights of",
    "kv": "KV tensors of",
    "attended": "attended KV of",
    "state": "states of",
    "tokens": "tokens a call:",
    "bits": "bits a weight:",
}


def seen(features: Features) -> Vector:
    """What a profile holds ranges of."""
    found = vector(features)
    return {
        **{name: found[name] for name in _UNITS},
        "tokens": float(features.tokens),
        "bits": features.bits,
    }


def outside(profile: Profile, features: Features) -> list[str]:
    """In words, what of a chunk lies beyond the rows of the fit; nothing if all was seen."""
    notes = []
    for name, value in seen(features).items():
        if name not in profile.ranges:
            if value:
                notes.append(f"{_NAMES[name]} {value:.3g}{_UNITS.get(name, '')}: never measured")
            continue
        low, high = profile.ranges[name]
        if not low * (1 - _SLACK) <= value <= high * (1 + _SLACK):
            limits = f"{low:.3g} to {high:.3g}" if low != high else f"{low:.3g}"
            told = f"{value:.3g}{_UNITS.get(name, '')}"
            notes.append(f"{_NAMES[name]} {told}; measured {limits}{_UNITS.get(name, '')}")
    return notes
