"""What compression costs a model, rung by rung, on a text.

Each rung is transformers' own model: as the checkpoint is, rounded to fp16, and with the weights,
tables and quantised activations of a bundle. Gates (i) to (iii) say that the bundle's packages
compute the last one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import exp, inf, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from attrs import define, frozen

from topoc.dsl.model import Budget
from topoc.lowering.calibration import Windows
from topoc.lowering.parity.oracle import Logits, Lookup, Oracle

ROWS = 64  # positions that are compared at once: a vocabulary of logits each, in float64
BEST = 5
MOST_SURPRISE = 700.0  # nats; e to the power of more is beyond float64
MEASURES = ("kl", "cosine", "top1")
HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda found, limit: found < limit,
    "<=": lambda found, limit: found <= limit,
    ">": lambda found, limit: found > limit,
    ">=": lambda found, limit: found >= limit,
    "==": lambda found, limit: found == limit,
}


@frozen(kw_only=True)
class Rung:
    """One form of the model against the checkpoint in fp32, over all positions of a text."""

    name: str
    positions: int
    kl: float  # mean over positions of KL(reference || this), in nats
    cosine: float  # of the logits, mean over positions
    least: float  # the cosine at the worst position
    top1: float  # share of positions where both choose the same token
    top5: float  # share where the reference's token is among the five best
    perplexity: float  # of the text itself


@frozen
class Breach:
    """A line of `expect` that does not hold."""

    budget: Budget
    found: float


@frozen(kw_only=True)
class Form:
    """What a rung changes in the reference."""

    name: str
    rounded: bool = False
    tables: Mapping[str, Lookup] = {}
    weights: Mapping[str, torch.Tensor] = {}
    scales: Mapping[str, float] = {}  # of activations

    @contextmanager
    def taken(self, oracle: Oracle) -> Iterator[None]:
        """With the oracle in this form."""
        with ExitStack() as stack:
            if self.rounded:
                stack.enter_context(oracle.rounded())
            stack.enter_context(oracle.tables(self.tables))
            stack.enter_context(oracle.holding(self.weights))
            stack.enter_context(oracle.quantising(self.scales, whole=True))
            yield


def ladder(oracle: Oracle, forms: Sequence[Form], windows: Windows) -> Iterator[Rung]:
    """The reference itself, then each form of it, over windows that begin with BOS."""
    positions = sum(map(len, windows))
    with TemporaryDirectory() as folder:
        reference: Any = None  # logits on disk, for a vocabulary of floats a position is much
        for form in (Form(name="fp32"), *forms):
            sums, at = _Sums(), 0
            with form.taken(oracle):
                for window in windows:
                    found = oracle.logits(window)
                    if reference is None:
                        shape = (positions, found.shape[1])
                        file = Path(folder) / "reference"
                        reference = np.memmap(file, np.float32, "w+", shape=shape)
                    if form.name == "fp32":
                        reference[at : at + len(found)] = found
                    sums.add(found, reference[at : at + len(found)], window)
                    at += len(found)
            yield sums.rung(form.name)
        del reference  # before its folder


def breaches(budgets: Sequence[Budget], rung: Rung) -> Iterator[Breach]:
    """The lines of `expect` that a rung does not keep; a value that is no number keeps none."""
    for budget in budgets:
        if budget.measure in MEASURES:
            found = float(getattr(rung, budget.measure))
            if not HOLDS[budget.relation](found, budget.value):
                yield Breach(budget, found)


@define
class _Sums:
    """Sums over positions; the last of a window predicts nothing that is known."""

    positions: int = 0
    predicted: int = 0
    kl: float = 0.0
    cosine: float = 0.0
    least: float = 1.0
    top1: int = 0
    top5: int = 0
    surprise: float = 0.0

    def add(self, found: Logits, reference: Logits, window: Sequence[int]) -> None:
        """Take in one window: logits (T, V) each."""
        for start in range(0, len(window), ROWS):
            rows = slice(start, start + ROWS)
            self._compare(torch.from_numpy(found[rows]), torch.from_numpy(reference[rows]))
            follow = torch.tensor(window[start + 1 : start + 1 + ROWS])
            told = torch.from_numpy(found[start : start + len(follow)]).double().log_softmax(1)
            self.surprise -= float(told.gather(1, follow[:, None]).sum())
            self.predicted += len(follow)

    def _compare(self, found: torch.Tensor, reference: torch.Tensor) -> None:
        mine, wanted = found.double(), reference.double()
        cosines = torch.nn.functional.cosine_similarity(mine, wanted, dim=1)
        told, true = mine.log_softmax(1), wanted.log_softmax(1)
        token = wanted.argmax(1)
        self.positions += len(mine)
        self.kl += float((true.exp() * (true - told)).sum())
        self.cosine += float(cosines.sum())
        self.least = float(np.minimum(self.least, float(cosines.min())))  # NaN stays
        self.top1 += int((mine.argmax(1) == token).sum())
        best = mine.topk(min(BEST, mine.shape[1]), dim=1).indices
        self.top5 += int((best == token[:, None]).any(1).sum())

    def rung(self, name: str) -> Rung:
        """The means."""
        count = self.positions
        surprise = self.surprise / self.predicted if self.predicted else nan
        return Rung(
            name=name,
            positions=count,
            kl=self.kl / count,
            cosine=self.cosine / count,
            least=self.least,
            top1=self.top1 / count,
            top5=self.top5 / count,
            perplexity=inf if surprise > MOST_SURPRISE else exp(surprise),
        )
