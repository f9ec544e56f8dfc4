"""Coefficients from measured rows, and how far to trust them.

The base is fitted on calls of one token whose KV travels as tensors: a dispatch, weights, KV at the
chunk's walls, KV that is attended. States, tokens and the host each get one coefficient from what
the base leaves of their own rows, so that a few coarse rows can't bend it.
"""

from collections.abc import Sequence
from math import sqrt

from attrs import evolve, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.plain import Plain
from topoc.lowering.cost import nnls
from topoc.lowering.cost.features import Features
from topoc.lowering.cost.predict import chunk_ms, seen, vector
from topoc.lowering.cost.profile import BASE, Errors, Profile
from topoc.lowering.cost.rows import Call, Row, Rows

_LEAST = len(BASE) + 1  # different chunks: one more than there are coefficients
_NEEDED = 2  # rows of a single coefficient: one has no spread

Points = list[tuple[float, float]]  # a feature, and the ms that are its own


@frozen(kw_only=True, eq=False, repr=False)
class Fit(Plain):
    """A profile, the rows of its base, and how a fit without each row's chunk tells it."""

    profile: Profile
    rows: tuple[Row, ...]
    left_out: tuple[float, ...]  # ms, predicted


def fit(found: Rows) -> Fit:
    """The profile of a device; raises TopocError where its rows can't tell the base apart."""
    base = [one for one in found.rows if one.features.tokens == 1 and not one.features.state]
    groups = {one.features: [row for row in base if row.features == one.features] for one in base}
    if len(groups) < _LEAST:
        raise _too_few(found, len(groups))
    solved = _solve(base)
    if not any(solved):
        raise _too_few(found, len(groups))
    others = [_without(base, one) for one in base]
    wrong = nnls.squares(_design(base), _values(base), solved) / len(base)
    freedom = max(1, len(groups) - sum(value > 0 for value in solved))
    sigma = sqrt(wrong * len(groups) / freedom)
    profile = Profile(
        chip=found.chip or "",
        device=found.device,
        coefficients=dict(zip(BASE, solved, strict=True)),
        covariance=_covariance(base, solved, sigma**2 * len(base) / len(groups)),
        variance={},
        sigma=sigma,
        freedom=freedom,
        ranges=_ranges([one.features for one in base]),
        errors=Errors(
            rows=len(base),
            chunks=len(groups),
            rmse=sqrt(wrong),
            left_out=_rms([b - a.ms for a, b in zip(base, others, strict=True)]),
        ),
    )
    return Fit(profile=_later(profile, found), rows=tuple(base), left_out=tuple(others))


def _too_few(found: Rows, chunks: int) -> TopocError:
    message = (
        f"{chunks} chunks of one token, which tell {len(BASE)} costs apart only if {_LEAST} do"
    )
    help_ = "add `measured` blocks with ms of chunks that differ in layers, KV and context"
    return TopocError(error("cost.too-few-rows", message, Place(found.device), help=help_))


def _design(rows: Sequence[Row]) -> list[list[float]]:
    return [[vector(one.features)[name] for name in BASE] for one in rows]


def _values(rows: Sequence[Row]) -> list[float]:
    return [one.ms for one in rows]


def _solve(rows: Sequence[Row]) -> list[float]:
    return nnls.solve(_design(rows), _values(rows))


def _without(rows: Sequence[Row], left: Row) -> float:
    """What a fit without a chunk, however often it was measured, says of it."""
    solved = _solve([one for one in rows if one.features != left.features])
    (values,) = _design([left])
    return sum(a * b for a, b in zip(values, solved, strict=True))


def _covariance(
    rows: Sequence[Row], solved: list[float], variance: float
) -> tuple[tuple[float, ...], ...]:
    """Repeats of one chunk count as one observation of it."""
    inverse = nnls.uncertainty(_design(rows), solved)
    return tuple(tuple(variance * value for value in row) for row in inverse)


def _ranges(found: Sequence[Features]) -> dict[str, tuple[float, float]]:
    names = ("weights", "kv", "attended", "tokens", "bits")
    told = [seen(one) for one in found]
    return {name: (min(o[name] for o in told), max(o[name] for o in told)) for name in names}


def _rms(errors: Sequence[float]) -> float:
    return sqrt(sum(one * one for one in errors) / len(errors))


def _later(profile: Profile, found: Rows) -> Profile:
    """The coefficients that rows of their own tell."""
    host = [(1.0, one.ms - one.chunks_ms) for one in found.calls if one.chunks_ms is not None]
    profile = _with(profile, "host", host)
    kept = [one for one in found.calls if any(chunk.state for chunk in one.features)]
    states = [_state(profile, one) for one in kept if one.chunks_ms is None]
    sizes = [chunk.megabytes("state") for one in kept for chunk in one.features]
    single = [one for one in found.rows if one.features.state and one.features.tokens == 1]
    states += [(one.features.megabytes("state"), _left(profile, one)) for one in single]
    sizes += [one.features.megabytes("state") for one in single]
    profile = _with(profile, "state", states, {"state": (0.0, max(sizes, default=0.0))})
    many = [one for one in found.rows if one.features.tokens > 1]
    batches = [(one.features.work, _left(profile, one)) for one in many]
    most = max((one.features.tokens for one in many), default=1)
    return _with(profile, "work", batches, {"tokens": (1.0, float(most))})


def _left(profile: Profile, row: Row) -> float:
    return row.ms - chunk_ms(profile, row.features)


def _state(profile: Profile, call: Call) -> tuple[float, float]:
    """A whole call's state in MB, and the ms that its other costs leave."""
    known = sum(chunk_ms(profile, one) for one in call.features)
    known += profile.coefficients.get("host", 0.0)
    return sum(one.megabytes("state") for one in call.features), call.ms - known


def _with(
    profile: Profile,
    name: str,
    points: Points,
    ranges: dict[str, tuple[float, float]] | None = None,
) -> Profile:
    """One coefficient more, if there are rows enough to tell its spread."""
    if len(points) < _NEEDED:
        return profile
    squared = sum(x * x for x, _ in points)
    found = max(0.0, sum(x * y for x, y in points) / squared)
    scale = _spread(points, found)
    return evolve(
        profile,
        coefficients={**profile.coefficients, name: found},
        variance={**profile.variance, name: scale},
        ranges={**profile.ranges, **(ranges or {})},
    )


def _spread(points: Points, found: float) -> float:
    """The variance of one more row's coefficient about the fitted one."""
    ratios = [y / x for x, y in points]
    return sum((one - found) ** 2 for one in ratios) / (len(points) - 1) * (1 + 1 / len(points))
