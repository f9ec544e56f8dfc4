"""What compression costs: the error of a weight, and that of the output it makes."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from topoc.lowering.compress.dequantise import rows
from topoc.lowering.compress.histogram import Floats
from topoc.lowering.compress.parts import Compressed, Damage
from topoc.lowering.compress.source import Source, codes, spans

RUN = 64
"""Rows whose squares are summed in float32; the error of such a sum is far below what is told."""


def damage(
    source: Source,
    made: Compressed,
    columns: Floats | None = None,
    products: Sequence[NDArray[np.float32]] | None = None,
) -> Damage:
    """Compare a compressed weight with its fp16 source.

    `columns` are the mean squares of the inputs; without them all columns count alike. Where
    columns make up for each other's errors, `products` tell it: the E[x xᵀ] of runs of inputs.
    """
    width = source.shape[1]
    signal, noise = np.zeros(width), np.zeros(width)
    output = output_noise = 0.0
    for start, stop in spans(0, *source.shape):
        true = torch.from_numpy(codes(source, start, stop).view(np.float16)).float()
        lost = true - torch.from_numpy(rows(made, start, stop)).float()
        if products is not None:
            output += _power(true, products)
            output_noise += _power(lost, products)
        signal += _squares(true)
        noise += _squares(lost)
    if products is None:
        by = np.ones(width) if columns is None else columns
        output, output_noise = float(signal @ by), float(noise @ by)
    return Damage(float(signal.sum()), float(noise.sum()), output, output_noise)


def _squares(values: torch.Tensor) -> Floats:
    """The sum of squares of each column; of a few rows in float32, which costs a third."""
    tall = values.square_().numpy()
    sums = np.zeros(tall.shape[1])
    for at in range(0, len(tall), RUN):
        sums += tall[at : at + RUN].sum(0)
    return sums


def _power(values: torch.Tensor, products: Sequence[NDArray[np.float32]]) -> float:
    """The power of an output: rows times the products of the inputs times rows again."""
    found, start = 0.0, 0
    for product in products:
        part = values[:, start : start + len(product)]
        through = part @ torch.from_numpy(np.array(product))  # mapped files can't be written to
        found += float(through.mul_(part).sum(dtype=torch.float64))
        start += len(product)
    return found
