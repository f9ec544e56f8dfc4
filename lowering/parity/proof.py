"""A bundle against its checkpoint, or against another bundle, gate by gate."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from attrs import frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.predict import InterpreterPredictor
from topoc.lowering.manifest import Manifest
from topoc.lowering.parity.gates import (
    Difference,
    Gate,
    difference,
    teacher_forced,
    telling_positions,
)
from topoc.lowering.parity.oracle import Oracle

STEP = 7919  # a prime: ids that wander all over the vocabulary


@frozen(kw_only=True)
class Verdict:
    """One gate's outcome."""

    gate: Gate
    against: str
    found: Difference

    @property
    def kept(self) -> bool:
        """Whether the limits hold."""
        return self.found.keeps(self.gate)


def telling_tokens(manifest: Manifest, count: int) -> list[int]:
    """BOS, token 0, the last row of the vocabulary, then ids from all over it."""
    vocabulary = manifest.model.vocabulary
    first = [*manifest.model.bos[:1], 0, vocabulary - 1]
    wander = [(1 + index * STEP) % vocabulary for index in range(count)]
    return (first + wander)[:count]


def default_positions(manifest: Manifest) -> tuple[int, ...]:
    """Around every window and twice it, as far as the context goes."""
    windows = {buffer.window for buffer in manifest.buffers if buffer.window is not None}
    last = min(manifest.model.context - 1, 2 * max(windows, default=8) + 2)
    return telling_positions(sorted(windows), last)


def prove(bundle: Bundle, oracle: Oracle, positions: Sequence[int]) -> Iterator[Verdict]:
    """Every gate that the bundle's precision has, over teacher-forced logits."""
    table = _coded_table(bundle)
    if table is None:
        yield from _prove(bundle, oracle, positions, "")
        return
    with oracle.embedding(table):
        yield from _prove(bundle, oracle, positions, ", the int8 embedding as shipped")


def _coded_table(bundle: Bundle) -> torch.Tensor | None:
    """The rows of a table that lost something to int8; None where the host table is whole."""
    table = bundle.manifest.tables.get("embed")
    if table is None or table.scales is None:
        return None
    codes = np.fromfile(bundle.path / table.path, np.int8).reshape(table.rows, table.width)
    scales = np.fromfile(bundle.path / table.scales, "<f4")[:, None]
    return torch.from_numpy(codes * scales)


def _prove(
    bundle: Bundle, oracle: Oracle, positions: Sequence[int], shipped: str
) -> Iterator[Verdict]:
    places = sorted(positions)
    tokens = telling_tokens(bundle.manifest, places[-1] + 1)
    reference = oracle.logits(tokens)[places]
    wide = teacher_forced(bundle, InterpreterPredictor(bundle), tokens, places)
    against = f"transformers, fp32{shipped}"
    if bundle.manifest.precision == "fp32":
        yield Verdict(gate="i", against=against, found=difference(wide, reference, places))
        return
    with oracle.rounded():
        alike = oracle.logits(tokens)[places]
    yield Verdict(
        gate="ii",
        against=f"transformers, weights rounded alike{shipped}",
        found=difference(wide, alike, places),
    )
    yield Verdict(gate="ii-unrounded", against=against, found=difference(wide, reference, places))
    narrow = teacher_forced(bundle, InterpreterPredictor(bundle, rounding=True), tokens, places)
    yield Verdict(gate="iii", against=against, found=difference(narrow, reference, places))


def agree(one: Bundle, other: Bundle, positions: Sequence[int]) -> Verdict:
    """Two bundles of one checkpoint, the first held against the second."""
    if one.manifest.model.weights_sha256 != other.manifest.model.weights_sha256:
        words = f"`{one.path}` and `{other.path}` come from different checkpoints"
        place = Place(str(other.path / "manifest.json"), "model.weights_sha256")
        raise TopocError(error("verify.other-weights", words, place, help="compare twins"))
    places = sorted(positions)
    tokens = telling_tokens(one.manifest, places[-1] + 1)
    found, wanted = (
        teacher_forced(bundle, InterpreterPredictor(bundle), tokens, places)
        for bundle in (one, other)
    )
    return Verdict(
        gate="ii-unrounded",
        against=other.path.name,
        found=difference(found, wanted, places),
    )
