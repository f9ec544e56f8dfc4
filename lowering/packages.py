"""Packages on their way to the disk: weights compressed, programs emitted, by several processes."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from math import prod
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from attrs import frozen

from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.lowering.bundle.reader import BundleWriter
from topoc.lowering.bundle.worker import follow
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compress.parts import Compressed
from topoc.lowering.compressed import Compressor, Fact, Settings
from topoc.lowering.describe import Identity
from topoc.lowering.emit.mil import emit
from topoc.lowering.ir import Weight
from topoc.lowering.package import BlobWriter, prepare, write_description
from topoc.lowering.plan import PackagePlan, Plan
from topoc.lowering.progress import Progress
from topoc.lowering.recipes import matrices
from topoc.lowering.sink import PackageSink
from topoc.lowering.stored import Extent, Rounded, RoundedKey

STEPS = 10  # lines that tell how far compression is

Facts = Mapping[str, Fact]
"""What is told of compressed weights, by their keys."""


@frozen(kw_only=True)
class PackageWriter:
    """Writes the packages of one compile; the bytes don't depend on the number of processes."""

    laid: Plan
    rounded: Rounded
    identity: Identity
    compressor: Compressor
    writer: BundleWriter
    progress: Progress
    jobs: int

    def compress(self, packages: tuple[PackagePlan, ...]) -> Facts:
        """Bring every compressed weight of the packages into the cache, the largest first."""
        wanted = {
            weight.key: weight
            for package in packages
            for weight in matrices(package.programs)
            if weight.role in package.recipes
        }
        if not wanted:
            return {}
        weights = sorted(wanted.values(), key=lambda one: -prod(one.type.shape))
        self.progress.begin(f"compressing {len(weights)} weights", 0)
        found: dict[str, Fact] = {}
        for weight, fact in self._facts(weights):
            found[weight.key] = fact
            if len(found) * STEPS // len(weights) > (len(found) - 1) * STEPS // len(weights):
                made = sum(one.fresh for one in found.values())
                told = f"{len(found)} of {len(weights)} are there"
                self.progress.begin(f"{told}, {made} of them new", 0)
        return found

    def write(self, packages: tuple[PackagePlan, ...]) -> None:
        """Write packages, each in a process of its own where there are several."""
        if self.jobs > 1 and len(packages) > 1:
            self._write_together(packages)
            return
        directory = self.writer.directory
        for package in packages:
            self.progress.begin(package.name, package.written_bytes)
            sink = _Sink(self.laid, package, self.rounded, self.compressor)
            sink.write(directory / package.path, self.identity)

    def _facts(self, weights: list[Weight]) -> Iterator[tuple[Weight, Fact]]:
        if self.jobs == 1 or len(weights) == 1:
            yield from ((weight, self.compressor.fact(weight)) for weight in weights)
            return
        work = _Work(self.laid, str(self.compressor.weights.reader.path), self._settings())
        with self._pool(len(weights), work) as pool:
            tasks = {pool.submit(_compressed, weight): weight for weight in weights}
            for task in as_completed(tasks):
                weight = tasks[task]
                yield weight, _result(task, weight.key)

    def _settings(self) -> Settings:
        return Settings.of(self.compressor)

    def _write_together(self, packages: tuple[PackagePlan, ...]) -> None:
        """The largest first."""
        work = _Work(self.laid, str(self.compressor.weights.reader.path), self._settings())
        with self._pool(len(packages), work) as pool:
            tasks = {
                pool.submit(self._task(package).run): package
                for package in sorted(packages, key=lambda one: -one.written_bytes)
            }
            for task in as_completed(tasks):
                package = tasks[task]
                _result(task, package.name)
                self.progress.begin(f"{package.name} is written", package.written_bytes)
                self.progress.advance(package.written_bytes)

    def _task(self, package: PackagePlan) -> "_Task":
        return _Task(
            package=package,
            written=self.rounded.written,
            path=self.writer.directory / package.path,
            identity=self.identity,
        )

    @contextmanager
    def _pool(self, tasks: int, work: "_Work") -> Iterator[ProcessPoolExecutor]:
        pool = ProcessPoolExecutor(
            min(self.jobs, tasks),
            mp_context=get_context("spawn"),
            initializer=_begin,
            initargs=(self.writer.lock, work),
        )
        others = {*active_children()}
        try:
            yield pool
        except BaseException:
            for one in {*active_children()} - others:
                one.terminate()  # what it writes would be thrown away
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _result(task: "Future[Any]", name: str) -> Any:  # of either kind of task
    """What a process made; raises what it found, or that it ended before it was done."""
    try:
        found = task.result()
    except BrokenProcessPool as broken:
        words = f"the process that wrote `{name}` ended before it was done"
        way = "there may be too little memory: compile with --jobs 1"
        raise TopocError(error("bundle.worker-lost", words, Place(name), help=way)) from broken
    if isinstance(found, _Findings):
        raise TopocError(*found.all)
    return found


@frozen
class _Findings:
    """What a process found; as data, since errors of ours don't pickle."""

    all: tuple[Diagnostic, ...]


@frozen
class _Work:
    """What a process needs for all its tasks; it opens the checkpoint for itself."""

    laid: Plan
    checkpoint: str
    settings: Settings


_WORK: list[_Work] = []
"""Of this process, where it is a worker."""


@cache
def _compressor() -> Compressor:
    """The one of this process, made in its first task: what it finds is then told."""
    work = _WORK[-1]
    weights = bind(open_checkpoint(work.checkpoint), work.laid.architecture)
    return work.settings.compressor(weights)


def _begin(lock: Any, work: _Work) -> None:  # the lock's class is the bundle's
    import torch

    follow(lock)
    torch.set_num_threads(1)
    _WORK.append(work)


def _compressed(weight: Weight) -> Fact | _Findings:
    """Compress one weight in a worker."""
    try:
        return _compressor().fact(weight)
    except TopocError as failure:
        return _Findings(failure.findings)


@frozen(kw_only=True)
class _Task:
    """One package that a worker writes."""

    package: PackagePlan
    written: Mapping[RoundedKey, Extent]
    path: Path
    identity: Identity

    def run(self) -> _Findings | None:
        """Write it."""
        try:
            compressor = _compressor()
            rounded = Rounded(compressor.weights, lambda _: None, dict(self.written))
            sink = _Sink(_WORK[-1].laid, self.package, rounded, compressor)
            sink.write(self.path, self.identity)
        except TopocError as failure:
            return _Findings(failure.findings)
        return None


@frozen
class _Sink:
    """One package being written."""

    laid: Plan
    package: PackagePlan
    rounded: Rounded
    compressor: Compressor

    def write(self, path: Path, identity: Identity) -> None:
        """Emit the programs of the package and stream its weights, each once."""
        metadata = {"topoc.build": identity.build, "topoc.chunk": self.package.name}
        with BlobWriter(prepare(path)) as blob:
            model = emit(
                self.package.programs,
                sink=PackageSink(self.rounded, blob, self._compressed),
                metadata=metadata,
                dtype=self.laid.dtype,
                recipes=self.package.recipes,
            )
        write_description(path, model)

    def _compressed(self, weight: Weight) -> Compressed:
        return self.compressor.get(weight)
