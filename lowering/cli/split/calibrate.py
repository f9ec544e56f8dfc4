"""`topoc split --calibrate`: costs of a device from `measured` blocks, and how well they fit."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.library import find
from topoc.dsl.lint.engine import unasked
from topoc.dsl.load import Loader
from topoc.dsl.model import Topology
from topoc.dsl.resolve import Given
from topoc.lowering.cost.fit import Fit, fit
from topoc.lowering.cost.picked import picked
from topoc.lowering.cost.predict import estimate
from topoc.lowering.cost.profile import BASE, Profile
from topoc.lowering.cost.rows import Rows, devices, name_of, rows

_UNITS = {
    "dispatch": "ms a chunk",
    "weights": "ms a MB of weights",
    "kv": "ms a MB of KV in or out",
    "attended": "ms a MB of K and V attended",
    "state": "ms a MB of state",
    "work": "ms a thousand million products of further tokens",
    "host": "ms a call, outside the chunks",
}


def calibrate(
    files: Sequence[str],
    *,
    held_out: Sequence[str] = (),
    listed: Path | None = None,
    device: str | None = None,
    model: Path | None = None,
) -> tuple[Fit, str]:
    """Fit the measured blocks of files but those held out; the fit, and its table.

    Where a file lists rows, those alone are fitted, of the figures of single chunks.
    """
    unseen = {find(one).resolve() for one in held_out}
    fitted = [one for one in files if find(one).resolve() not in unseen]
    topologies = _load(fitted, model)
    chosen = _device(topologies, device, files)
    found = rows(topologies, chosen)
    made = fit(found if listed is None else picked(found, listed))
    told = [*_head(made), "", *_costs(made.profile), "", *_rows(made)]
    if held_out:
        told += ["", *_held_out(made.profile, rows(_load(held_out, model), chosen))]
    if found.aside:
        told += ["", "left aside", *(f"  {one}" for one in found.aside)]
    return made, "\n".join(told)


def _load(files: Sequence[str], model: Path | None) -> list[Topology]:
    """Every topology of the files; raises TopocError with what is wrong in one."""
    loader = Loader(Given({}, model, None), look=unasked)
    found = []
    for file in files:
        for loaded in loader.all(file):
            if loaded.topology is not None:
                found.append(loaded.topology)
            elif any(one.severity.value == "error" for one in loaded.findings):
                raise TopocError(*loaded.findings)
    return found


def _device(topologies: Sequence[Topology], device: str | None, files: Sequence[str]) -> str:
    """The device that was asked for, else the one with most figures."""
    known = devices(topologies)
    if device in known:
        return device or ""
    if known and device is None:
        return max(known, key=lambda one: known[one])
    named = f"of `{device}` " if device else ""
    message = f"there are no figures {named}in `measured` blocks here"
    help_ = f"there are figures of {', '.join(known)}" if known else "add `measured on DATE { … }`"
    raise TopocError(error("cost.too-few-rows", message, Place(files[0]), help=help_))


def _head(made: Fit) -> Iterator[str]:
    profile, errors = made.profile, made.profile.errors
    yield f"{profile.device} ({profile.chip or 'no chip stated'}): fitted on {errors.rows} rows"
    yield f"  fit RMSE               {errors.rmse:.2f} ms over {errors.rows} rows"
    yield f"  leave-one-chunk-out    {errors.left_out:.2f} ms over {errors.chunks} chunks"
    yield f"  one chunk's figure     ± {profile.sigma:.2f} ms, {profile.freedom} degrees of freedom"


def _costs(profile: Profile) -> Iterator[str]:
    yield "costs"
    for name, unit in _UNITS.items():
        if name not in profile.coefficients:
            yield f"  {name:9} not measured"
            continue
        value = profile.coefficients[name]
        if name in BASE:
            at = BASE.index(name)
            doubt = profile.covariance[at][at] ** 0.5
        else:
            doubt = profile.variance[name] ** 0.5
        bound = "  (at its bound)" if value == 0 else ""
        yield f"  {name:9}{value:9.4f} ± {doubt:.4f} {unit}{bound}"


def _rows(made: Fit) -> Iterator[str]:
    yield f"{'rows':38}{'measured':>10}{'fitted':>9}{'left out':>10}"
    for one, without in zip(made.rows, made.left_out, strict=True):
        fitted = estimate(made.profile, one.features).ms
        yield f"  {name_of(one):36}{one.ms:10.1f}{fitted:9.1f}{without:10.1f}"


def _held_out(profile: Profile, found: Rows) -> Iterator[str]:
    """Rows that the fit has not seen."""
    yield f"{'held out':38}{'measured':>10}{'told':>9}{'off':>9}"
    for one in found.rows:
        told = estimate(profile, one.features)
        off = 100 * (told.ms / one.ms - 1)
        yield f"  {name_of(one):36}{one.ms:10.1f}{told.ms:9.1f}{off:+7.1f} %"
