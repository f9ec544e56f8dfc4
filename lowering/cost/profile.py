"""The costs of one chip: coefficients, how sure they are, and the range they were fitted on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from attrs import asdict, fields, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.plain import Plain
from topoc.dsl.targets import COSTS, costs_of

SCHEMA = "topoc.costs/1"
BASE = ("dispatch", "weights", "kv", "attended")  # fitted together, on calls of one token
LATER = ("state", "work", "host")  # each fitted on what the base leaves unexplained
LARGEST = 100_000  # bytes of a file

Span = tuple[float, float]


@frozen(kw_only=True, eq=False, repr=False)
class Errors(Plain):
    """How well the fit tells the rows that it was made from, in ms."""

    rows: int
    chunks: int  # different chunk programs among the rows
    rmse: float
    left_out: float  # each chunk told by a fit without it


@frozen(kw_only=True, eq=False, repr=False)
class Profile(Plain):
    """What a call costs on one chip.

    `coefficients` are ms: a dispatch, a MB of `weights`, `kv`, `attended` and `state`, a thousand
    million products of `work`, and the host's own ms of a call. What no row tells is absent.
    """

    chip: str
    device: str
    coefficients: dict[str, float]
    covariance: tuple[tuple[float, ...], ...]  # of BASE
    variance: dict[str, float]  # of LATER
    sigma: float  # ms, of one chunk's figure
    freedom: int  # observations less coefficients
    ranges: dict[str, Span]  # feature → least and most that was seen
    errors: Errors


def shipped(chip: str | None) -> Profile | None:
    """The profile of a chip that topoc has measurements of."""
    path = costs_of(chip)
    return None if path is None else read(path)


def chips() -> tuple[str, ...]:
    """The chips that have one."""
    return tuple(sorted(one.stem for one in COSTS.glob("*.json")))


def choose(wanted: str | None, chip: str | None) -> Profile | None:
    """The profile to predict with: a file or a chip that was asked for, else the target's own.

    Raises TopocError for a name that is neither.
    """
    if wanted is None:
        return shipped(chip)
    found = shipped(wanted)
    if found is not None:
        return found
    if not Path(wanted).exists():
        known = ", ".join(chips())
        message = f"`{wanted}` is no file of costs and no chip that was measured"
        help_ = f"measured chips: {known}; `topoc split --calibrate` makes a file"
        raise TopocError(error("cost.unknown", message, Place(wanted), help=help_))
    return read(Path(wanted))


def dumps(profile: Profile) -> str:
    """The file of a profile."""
    told = {"schema": SCHEMA, **asdict(profile)}
    return json.dumps(_rounded(told), indent=2) + "\n"


def _rounded(value: Any) -> Any:  # JSON values
    """Eight digits: more would say that machines differ, not devices."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def read(path: Path) -> Profile:
    """A profile from its file; raises TopocError, with the reason, for anything else."""
    try:
        data = path.read_bytes()
        if len(data) > LARGEST:
            raise _refusal(path, "it is larger than any profile")
        return _profile(json.loads(data))
    except OSError as failure:
        raise _refusal(path, (failure.strerror or str(failure)).lower()) from failure
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as failure:
        raise _refusal(path, f"it is no profile: {failure}") from failure


def _refusal(path: Path, reason: str) -> TopocError:
    help_ = "write one with `topoc split --calibrate FILE… -o COSTS.json`"
    return TopocError(
        error("cost.unreadable", f"can't read the costs: {reason}", Place(str(path)), help=help_)
    )


def _profile(told: Any) -> Profile:  # JSON values
    names = [one.name for one in fields(Profile)]
    if not isinstance(told, dict) or set(told) != {"schema", *names} or told["schema"] != SCHEMA:
        message = f"expected an object of `{SCHEMA}` with {', '.join(names)}"
        raise ValueError(message)
    errors = told["errors"]
    if set(errors) != {one.name for one in fields(Errors)}:
        message = "its errors are not those of a fit"
        raise ValueError(message)
    covariance = tuple(tuple(map(_number, row)) for row in told["covariance"])
    if [len(row) for row in covariance] != [len(BASE)] * len(BASE):
        message = f"the covariance has {len(BASE)} rows of {len(BASE)}"
        raise ValueError(message)
    return Profile(
        chip=str(told["chip"]),
        device=str(told["device"]),
        coefficients=_named(told["coefficients"], BASE, (*BASE, *LATER), _positive),
        covariance=covariance,
        variance=_named(told["variance"], (), LATER, _positive),
        sigma=_positive(told["sigma"]),
        freedom=max(1, int(told["freedom"])),
        ranges={str(key): _span(pair) for key, pair in told["ranges"].items()},
        errors=Errors(
            rows=int(errors["rows"]),
            chunks=int(errors["chunks"]),
            rmse=_positive(errors["rmse"]),
            left_out=_positive(errors["left_out"]),
        ),
    )


def _named(
    told: Any, needed: tuple[str, ...], known: tuple[str, ...], value: Callable[[Any], float]
) -> dict[str, float]:  # JSON values
    found = {str(key): value(one) for key, one in told.items()}
    if not set(needed) <= set(found) <= set(known):
        message = f"coefficients are {', '.join(known)}"
        raise ValueError(message)
    return found


def _span(pair: Any) -> Span:  # JSON values
    low, high = map(_number, pair)
    return low, high


def _positive(value: Any) -> float:  # JSON values
    found = _number(value)
    if found < 0:
        message = f"{value} is below zero"
        raise ValueError(message)
    return found


def _number(value: Any) -> float:  # JSON values
    if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
        message = f"{value!r} is no finite number"
        raise ValueError(message)
    return cast("float", value)
