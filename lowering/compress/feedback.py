"""Error feedback: columns are rounded one after the other, and later ones make up for earlier.

The method of GPTQ (Frantar and others, arXiv:2210.17323) with a table in place of a grid: the
table stays, the indices change. Columns go in the order of their inputs' power. It needs the
products of the inputs, E[x xᵀ], and costs a hundred times what palettization does.
"""

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from topoc.lowering.compress.dequantise import tables
from topoc.lowering.compress.histogram import Index
from topoc.lowering.compress.method import FEEDBACK_BITS
from topoc.lowering.compress.packing import Packer
from topoc.lowering.compress.parts import Compressed, Part
from topoc.lowering.compress.recipe import Palettize
from topoc.lowering.compress.source import Source, codes

DAMPING = 0.01  # of the mean power, added to each input's: few tokens leave the products singular
LAZY = 64  # columns after which the rest is brought up to date
TALL = 4096  # rows at once


@frozen
class _Block:
    """Inputs whose products are known: their columns in order of power, and how errors spread."""

    columns: Index
    spread: torch.Tensor  # upper triangular: [columns, columns]


def fed_back(
    source: Source, made: Compressed, products: Sequence[NDArray[np.float32]]
) -> Compressed:
    """A palettized weight with other indices, so that less of the error reaches the output.

    `products` are the E[x xᵀ] of runs of inputs, one behind the other, that cover all columns;
    errors are made up for inside a run. One run of all columns is best, and several need less
    memory.
    """
    how = made.recipe
    if not isinstance(how, Palettize) or how.bits > FEEDBACK_BITS:
        message = f"error feedback goes with palettize of at most {FEEDBACK_BITS} bits"
        raise ValueError(message)
    blocks = _blocks(products, made.columns)
    indices = made.parts["indices"]
    entries = torch.from_numpy(tables(made)).float()
    each = indices.shape[0] // len(entries)
    out = Part(indices.dtype, indices.shape, np.empty_like(indices.data))
    packer = Packer(out.data, how.bits)
    tall = max(1, TALL // each) * each
    for start in range(0, made.rows, tall):
        stop = min(start + tall, made.rows)
        values = torch.from_numpy(codes(source, start, stop).view(np.float16)).float()
        group = torch.arange(start, stop) // each
        packer.append(_rounded(values, entries[group], blocks).numpy())
    packer.append(indices.rows(made.rows, indices.shape[0]))
    packer.finish()
    return Compressed(how, made.rows, {**made.parts, "indices": out})


def _blocks(products: Sequence[NDArray[np.float32]], columns: int) -> list[_Block]:
    widths = [len(one) for one in products]
    if sum(widths) != columns:
        message = f"the products are of {sum(widths)} inputs, and the weight has {columns}"
        raise ValueError(message)
    starts = np.cumsum([0, *widths[:-1]])
    return [_block(one, int(start)) for one, start in zip(products, starts, strict=True)]


def _block(product: NDArray[np.float32], start: int) -> _Block:
    """The factor by which an error in one column is best made up for in those behind it."""
    power = np.diag(product)
    order = np.argsort(-power, kind="stable")
    ordered = torch.from_numpy(product[np.ix_(order, order)].astype(np.float64))
    damping = DAMPING * float(power.mean()) or 1.0
    ordered += damping * torch.eye(len(order), dtype=torch.float64)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(ordered))
    return _Block(start + order, torch.linalg.cholesky(inverse, upper=True).float())


def _rounded(values: torch.Tensor, entries: torch.Tensor, blocks: list[_Block]) -> torch.Tensor:
    """The indices of some rows, whose tables are `entries`: [rows, columns]."""
    limits = (entries[:, 1:] + entries[:, :-1]) / 2.0
    found = torch.empty(values.shape, dtype=torch.uint8)
    for block in blocks:
        columns = torch.from_numpy(block.columns)
        found[:, columns] = _block_indices(values[:, columns], entries, limits, block.spread)
    return found


def _block_indices(
    values: torch.Tensor, entries: torch.Tensor, limits: torch.Tensor, spread: torch.Tensor
) -> torch.Tensor:
    rest = values.T.contiguous()  # a column's values stand together: [columns, rows]
    found = torch.empty(rest.shape, dtype=torch.uint8)
    diagonal = spread.diagonal()
    for first in range(0, len(rest), LAZY):
        last = min(first + LAZY, len(rest))
        errors = torch.empty((last - first, rest.shape[1]))
        for at in range(first, last):
            index = (rest[at][:, None] > limits).sum(1)
            near = entries.gather(1, index[:, None])[:, 0]
            error = (rest[at] - near) / diagonal[at]
            rest[at + 1 : last] -= spread[at, at + 1 : last, None] * error
            errors[at - first], found[at] = error, index.byte()
        rest[last:] -= spread[first:last, last:].T @ errors
    return found.T
