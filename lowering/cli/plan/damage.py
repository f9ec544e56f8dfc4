"""What a bundle's compression cost, the worst first."""

from math import inf

from topoc.lowering import manifest
from topoc.lowering.cli.plan import report


def compressed(made: manifest.Quantization | None) -> list[report.Compressed]:
    """Every compressed weight."""
    found = [
        report.Compressed(
            weight=one.weight,
            scheme=one.scheme,
            bytes=one.bytes,
            sqnr=one.sqnr,
            output_error=one.output_error,
        )
        for one in _tensors(made)
    ]
    return sorted(found, key=lambda one: (_damage(one), one["weight"]))


def layers(made: manifest.Quantization | None) -> list[report.Layer]:
    """The weights of each layer together."""
    groups: dict[int | None, list[manifest.Tensor]] = {}
    for one in _tensors(made):
        groups.setdefault(one.layer, []).append(one)
    found = [_layer(index, mine) for index, mine in groups.items()]
    return sorted(found, key=lambda one: (_damage(one), one["layer"] or 0))


def _tensors(made: manifest.Quantization | None) -> tuple[manifest.Tensor, ...]:
    return () if made is None else made.tensors


def _layer(index: int | None, mine: list[manifest.Tensor]) -> report.Layer:
    errors = [one.output_error for one in mine if one.output_error is not None]
    return report.Layer(
        layer=index,
        bytes=sum(one.bytes for one in mine),
        sqnr=min((one.sqnr for one in mine if one.sqnr is not None), default=None),
        output_error=sum(errors) / len(errors) if errors else None,
    )


def _damage(one: report.Compressed | report.Layer) -> tuple[float, float]:
    """Less comes first: the greatest error, and where none is known the least ratio."""
    error = -inf if one["output_error"] is None else one["output_error"]
    return -error, inf if one["sqnr"] is None else one["sqnr"]
