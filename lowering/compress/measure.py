"""What compression costs: the error of a weight, and that of the output it makes."""

import numpy as np
import torch

from topoc.lowering.compress.dequantise import rows
from topoc.lowering.compress.histogram import Floats
from topoc.lowering.compress.parts import Compressed, Damage
from topoc.lowering.compress.source import Source, codes, spans


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
