"""What projections read over a text: mean squares of their inputs, their products, their peaks.

The mean square of an input says how much an error in its column of the weight counts, the
greatest |x| how wide the steps of eight bits must be.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from attrs import define, field, frozen
from numpy.typing import NDArray

from topoc.lowering.architecture import Architecture
from topoc.lowering.calibration import Text, Windows
from topoc.lowering.compress.histogram import Floats
from topoc.lowering.compress.importance import Importance
from topoc.lowering.interpret.walk import Tensors, Visit, Walk
from topoc.lowering.threads import one_thread

METHOD = 1  # raised when the same tokens give other numbers
RUN = 2048  # inputs whose products with each other are kept; longer inputs are cut into runs


@frozen
class Inputs:
    """What was seen of each projection's input, by the role of its weight.

    Projections that read one value share their figures. It goes to other processes as it is:
    products are files that each opens for itself.
    """

    tokens: int
    digest: str  # of the tokens and the method, without the checkpoint
    power: Mapping[str, Floats] = field(repr=False)  # E[x²], (columns)
    held_out: Mapping[str, Floats] = field(repr=False)  # the same on text kept back
    peaks: Mapping[str, float] = field(factory=dict, repr=False)  # the greatest |x|
    files: Mapping[str, tuple[Path, ...]] = field(factory=dict, repr=False)  # one a run
    judging: Mapping[str, tuple[Path, ...]] = field(factory=dict, repr=False)  # on what was kept
    hashes: Mapping[str, str] = field(factory=dict, repr=False)

    def importance(self, role: str) -> Importance | None:
        """How much the columns of a weight count; None where nothing reads it."""
        found = self.power.get(role)
        return None if found is None else Importance(found)

    def judged(self, role: str) -> Floats | None:
        """E[x²] on the text that was kept back, to judge a compressed weight by."""
        return self.held_out.get(role)

    def products(self, role: str) -> list[NDArray[np.float32]] | None:
        """E[x xᵀ] of runs of inputs, (run, run) each; None if they were not asked for."""
        return _opened(self.files.get(role))

    def judging_products(self, role: str) -> list[NDArray[np.float32]] | None:
        """The same on the text that was kept back."""
        return _opened(self.judging.get(role))

    def key(self, role: str) -> str:
        """What tells these products from others, for a cache; empty without any."""
        return self.hashes.get(role, "")


def _opened(files: tuple[Path, ...] | None) -> list[NDArray[np.float32]] | None:
    return None if files is None else [np.load(file, mmap_mode="r") for file in files]


def digest(text: Text) -> str:
    """What is known of the figures before they are made: the tokens and the method."""
    told = (METHOD, RUN, text.seen, text.held_out)
    return sha256(repr(told).encode()).hexdigest()


def calibrate(
    architecture: Architecture, tensors: Tensors, text: Text, folder: Path | None = None
) -> Inputs:
    """Pass a text through the checkpoint; with a folder, write products of inputs into it."""
    seen, kept = (
        _watched(architecture, tensors, windows, folder and folder / name)
        for name, windows in (("seen", text.seen), ("kept", text.held_out))
    )
    return Inputs(
        tokens=sum(map(len, text.seen)),
        digest=digest(text),
        power=seen.power,
        held_out=kept.power,
        peaks=seen.peaks,
        files=seen.files,
        judging=kept.files,
        hashes={role: seen.hashes[role] + kept.hashes[role] for role in seen.hashes},
    )


def powers(architecture: Architecture, tensors: Tensors, windows: Windows) -> dict[str, Floats]:
    """E[x²] of what each projection reads, by the role of its weight: (columns)."""
    return _watched(architecture, tensors, windows, None).power


def _watched(
    architecture: Architecture, tensors: Tensors, windows: Windows, folder: Path | None
) -> "_Watched":
    """All that is seen in a pass; with a folder, which is made, products go into it."""
    if folder is not None:
        folder.mkdir()
    watched = _Watched(folder)
    with one_thread(), torch.inference_mode():
        for visit in Walk(architecture, tensors, windows).visits():
            watched.take(visit)
        watched.finish()
    return watched


@define
class _Watched:
    """Sums over windows; those of a program are finished when another one begins."""

    folder: Path | None
    power: dict[str, Floats] = field(factory=dict)
    peaks: dict[str, float] = field(factory=dict)
    files: dict[str, tuple[Path, ...]] = field(factory=dict)
    hashes: dict[str, str] = field(factory=dict)
    _reads: dict[str, str] = field(factory=dict)  # of the program at hand
    _tokens: int = 0
    _squares: dict[str, torch.Tensor] = field(factory=dict)  # by value
    _greatest: dict[str, torch.Tensor] = field(factory=dict)
    _products: dict[str, list[torch.Tensor]] = field(factory=dict)

    def take(self, visit: Visit) -> None:
        """Add what one window says."""
        if visit.reads != self._reads:
            self.finish()
            self._reads = visit.reads
        for name in dict.fromkeys(visit.reads.values()):
            x = visit.values[name][0, :, 0]  # (channels, tokens)
            found = x.double().square_().sum(1)
            self._squares[name] = self._squares.get(name, 0.0) + found
            peak = x.abs().max()
            self._greatest[name] = torch.maximum(self._greatest.get(name, peak), peak)
            if self.folder is not None:
                self._multiply(name, x)
        self._tokens += visit.before.shape[3]

    def _multiply(self, name: str, x: torch.Tensor) -> None:
        runs = (x[at : at + RUN] for at in range(0, len(x), RUN))
        found = [(run @ run.T).double() for run in runs]
        before = self._products.get(name, found)
        both = zip(before, found, strict=True)
        self._products[name] = found if before is found else [one + more for one, more in both]

    def finish(self) -> None:
        """Turn the sums of a program into means."""
        means = {name: (one / self._tokens).numpy() for name, one in self._squares.items()}
        kept = {name: self._keep(name) for name in self._products}
        for role, name in self._reads.items():
            self.power[role] = means[name]
            self.peaks[role] = float(self._greatest[name])
            if name in kept:
                self.files[role], self.hashes[role] = kept[name]
        self._squares.clear()
        self._greatest.clear()
        self._products.clear()
        self._reads, self._tokens = {}, 0

    def _keep(self, name: str) -> tuple[tuple[Path, ...], str]:
        """Write the products of one value, and tell their hash."""
        assert self.folder is not None  # noqa: S101 — nothing was multiplied without
        first = next(role for role, value in self._reads.items() if value == name)
        digest, files = sha256(), []
        for at, product in enumerate(self._products[name]):
            mean = (product / self._tokens).float().numpy()
            files.append(self.folder / f"{first}.{at}.npy")
            np.save(files[-1], mean)
            digest.update(mean.data)
        return tuple(files), digest.hexdigest()
