"""A bundle against its checkpoint, or against another bundle, gate by gate."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from attrs import frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.architecture import read
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.predict import InterpreterPredictor
from topoc.lowering.manifest import Manifest, Table
from topoc.lowering.parity.activations import activation_scales, told
from topoc.lowering.parity.gates import (
    Difference,
    Gate,
    Logits,
    difference,
    teacher_forced,
    telling_positions,
)
from topoc.lowering.parity.oracle import Lookup, Oracle, state_name
from topoc.lowering.parity.shipped import shipped

T = TypeVar("T")
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
    """BOS, token 0, the last that all tables have a row of, then ids from all over them."""
    rows = (table.rows for table in manifest.tables.values())
    vocabulary = min((manifest.model.vocabulary, *rows))
    first = [*manifest.model.bos[:1], 0, vocabulary - 1]
    wander = [(1 + index * STEP) % vocabulary for index in range(count)]
    return (first + wander)[:count]


def default_positions(manifest: Manifest) -> tuple[int, ...]:
    """Around every window and twice it, as far as the context goes."""
    rows = (row for buffer in manifest.buffers for row in buffer.rows)
    windows = {row.window for row in rows if row.window is not None}
    last = min(manifest.model.context - 1, 2 * max(windows, default=8) + 2)
    return telling_positions(sorted(windows), last)


def prove(bundle: Bundle, oracle: Oracle, positions: Sequence[int]) -> Iterator[Verdict]:
    """Every gate that the bundle's precision has, over teacher-forced logits."""
    coded, config = coded_tables(bundle), bundle.path / "config.json"
    held, scales = named(config, shipped(bundle)), named(config, activation_scales(bundle))
    places = sorted(positions)
    tokens = telling_tokens(bundle.manifest, places[-1] + 1)
    wide = teacher_forced(bundle, InterpreterPredictor(bundle), tokens, places)
    asked = _Asked(
        bundle=bundle, oracle=oracle, places=places, tokens=tokens, held=held, scales=scales
    )
    with oracle.tables(coded):
        yield from asked.verdicts(wide, _shipped(coded, held))
    if held or scales:
        against = "transformers, fp32, nothing compressed"
        whole = oracle.logits(tokens)[places]
        yield Verdict(gate="iv", against=against, found=difference(wide, whole, places))


def named(config: Path, held: Mapping[str, T]) -> dict[str, T]:
    """What is known by the roles of weights, by the names that transformers has for them."""
    specs = {spec.role: spec for spec in read(config).tensors}
    return {state_name(specs[role], projects=True): one for role, one in held.items()}


CLIPPED, ROUNDED = "activations clipped to int8, not rounded", "activations rounded to int8"
WORDS = {"embed": "the int8 embedding", "ple_table": "the int8 per-layer rows"}


def _shipped(coded: Iterable[str], held: Iterable[str]) -> str:
    """What the reference takes from the bundle, in words."""
    parts = [WORDS[name] for name in coded] + ["compressed weights"] * any(held)
    return f", {' and '.join(parts)} as shipped" if parts else ""


def coded_tables(bundle: Bundle) -> dict[str, Lookup]:
    """The tables that lost something to int8; they stay on disk, mapped."""
    found = ((name, bundle.manifest.tables.get(name)) for name in WORDS)
    return {
        name: _decoder(bundle, table)
        for name, table in found
        if table is not None and table.scales is not None
    }


def _decoder(bundle: Bundle, table: Table) -> Lookup:
    codes = np.memmap(bundle.path / table.path, np.int8, "r", shape=(table.rows, table.width))
    code = {"fp16": "<f2", "fp32": "<f4"}[table.scales_dtype]
    scales = np.memmap(bundle.path / str(table.scales), code, "r", shape=(table.rows, 1))

    def rows(ids: torch.Tensor) -> torch.Tensor:
        places = ids.numpy()
        steps = scales[places].astype(np.float32) / np.float32(table.divisor)
        return torch.from_numpy(codes[places] * steps)

    return rows


@frozen(kw_only=True)
class _Asked:
    """What the gates are asked of; the oracle looks up the tables as they ship."""

    bundle: Bundle
    oracle: Oracle
    places: list[int]
    tokens: list[int]
    held: Mapping[str, torch.Tensor]
    scales: Mapping[str, float]  # of activations

    def verdicts(self, wide: Logits, words: str) -> Iterator[Verdict]:
        """Gates (i) to (iii); `wide` are the bundle's logits in fp32.

        Rounding to int8 jumps, and a hair's difference before it is a step behind it. So the gates
        hold both sides before it, clipped; with it they are compared too, without a limit.
        """
        if self.scales:
            with self.oracle.rounded():
                alike = self._reference(whole=True)
            against = f"transformers, weights rounded alike{words}, {ROUNDED}"
            yield self._verdict("iv", against, wide, alike)
            words += f", {CLIPPED}"
            wide = self._told(rounding=False)
        against = f"transformers, fp32{words}"
        reference = self._reference()
        if self.bundle.manifest.precision == "fp32":
            yield self._verdict("i", against, wide, reference)
            return
        with self.oracle.rounded():
            alike = self._reference()
        yield self._verdict("ii", f"transformers, weights rounded alike{words}", wide, alike)
        yield self._verdict("ii-unrounded", against, wide, reference)
        yield self._verdict("iii", against, self._told(rounding=True), reference)

    def _told(self, *, rounding: bool) -> Logits:
        """The bundle's logits without the rounding to int8."""
        predictor = InterpreterPredictor(self.bundle, rounding=rounding, fractions=True)
        return teacher_forced(self.bundle, predictor, self.tokens, self.places)

    def _reference(self, *, whole: bool = False) -> Logits:
        with self.oracle.holding(self.held), self.oracle.quantising(self.scales, whole=whole):
            return self.oracle.logits(self.tokens)[self.places]

    def _verdict(self, gate: Gate, against: str, found: Logits, reference: Logits) -> Verdict:
        return Verdict(gate=gate, against=against, found=difference(found, reference, self.places))


def agree(one: Bundle, other: Bundle, positions: Sequence[int]) -> Verdict:
    """Two bundles of one checkpoint, the first held against the second."""
    if one.manifest.model.weights_sha256 != other.manifest.model.weights_sha256:
        words = f"`{one.path}` and `{other.path}` come from different checkpoints"
        place = Place(str(other.path / "manifest.json"), "model.weights_sha256")
        raise TopocError(error("verify.other-weights", words, place, help="compare twins"))
    places = sorted(positions)
    tokens = telling_tokens(one.manifest, places[-1] + 1)
    alike = told(one) == told(other)  # then what rounding to int8 makes of a hair tells nothing
    found, wanted = (
        teacher_forced(bundle, InterpreterPredictor(bundle, fractions=alike), tokens, places)
        for bundle in (one, other)
    )
    return Verdict(
        gate="ii-unrounded",
        against=other.path.name,
        found=difference(found, wanted, places),
    )
