"""What compression costs: the error of a weight, and that of the output it makes."""

from math import inf, log10

import numpy as np
import torch
from attrs import frozen

from topoc.lowering.compress.dequantise import rows
from topoc.lowering.compress.histogram import Floats
from topoc.lowering.compress.parts import Compressed
from topoc.lowering.compress.source import Source, codes, spans


@frozen
class Damage:
    """Squared sums of a weight and of its error; also with each column counted by its input."""

    signal: float
    noise: float
    output: float  # Σ w² · E[x²], the power of the output if inputs were independent
    output_noise: float

    @property
    def sqnr(self) -> float:
        """The signal over its error, in decibels; infinity where nothing was lost."""
        if self.noise == 0.0:
            return inf
        return 10.0 * log10(self.signal / self.noise) if self.signal else -inf

    @property
    def output_error(self) -> float:
        """The error of the output over its power, 0 to about 1."""
        return self.output_noise / self.output if self.output else 0.0


def damage(source: Source, made: Compressed, columns: Floats | None = None) -> Damage:
    """Compare a compressed weight with its fp16 source.

    `columns` are the mean squares of the inputs; without them all columns count alike.
    """
    width = source.shape[1]
    signal, noise = np.zeros(width), np.zeros(width)
    for start, stop in spans(0, *source.shape):
        true = torch.from_numpy(codes(source, start, stop).view(np.float16)).float()
        lost = true - torch.from_numpy(rows(made, start, stop)).float()
        signal += true.square_().sum(0, dtype=torch.float64).numpy()
        noise += lost.square_().sum(0, dtype=torch.float64).numpy()
    by = np.ones(width) if columns is None else columns
    return Damage(float(signal.sum()), float(noise.sum()), float(signal @ by), float(noise @ by))
