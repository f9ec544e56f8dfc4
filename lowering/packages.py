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

from attrs import field, frozen

from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.lowering.architecture import Architecture
from topoc.lowering.bundle.reader import BundleWriter
from topoc.lowering.bundle.worker import follow
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compressed import Compressor, Fact, Settings
from topoc.lowering.describe import Identity
from topoc.lowering.emissions import Emissions
from topoc.lowering.emit.mil.records import Record
from topoc.lowering.ir import Weight
from topoc.lowering.package import prepare, write_description
from topoc.lowering.plan import PackagePlan, Plan
from topoc.lowering.progress import Progress
from topoc.lowering.recipes import matrices
from topoc.lowering.reuse import Reuse
from topoc.lowering.stored import Extent, Rounded, RoundedKey
from topoc.lowering.weight_file import Constants

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
    emissions: Emissions
    writer: BundleWriter
    progress: Progress
    jobs: int
    digests: dict[Path, str] = field(factory=dict)  # of files whose SHA-256 is known

    def compress(self, packages: tuple[PackagePlan, ...]) -> None:
        """Bring every compressed weight of the packages into the cache, the largest first."""
        wanted = {
            weight.key: weight
            for package in packages
            for weight in matrices(package.programs)
            if weight.role in package.recipes
        }
        missing = [weight for weight in wanted.values() if not self.compressor.has(weight)]
        if not missing:
            return
        missing.sort(key=lambda one: -prod(one.type.shape))
        there = f", {len(wanted) - len(missing)} more are there" * (len(missing) < len(wanted))
        self.progress.begin(f"compressing {len(missing)} weights{there}", 0)
        for done, _ in enumerate(self._made(missing), 1):
            if done * STEPS // len(missing) > (done - 1) * STEPS // len(missing):
                self.progress.begin(f"{done} of {len(missing)} are there", 0)

    def write(self, packages: tuple[PackagePlan, ...]) -> Facts:
        """Write packages, each in a process of its own where there are several."""
        if self.jobs > 1 and len(packages) > 1:
            return self._write_together(packages)
        for package in packages:
            self.progress.begin(package.name, package.written_bytes)
            self.digests.update(self._emitted(package).write(self._constants))
        return self.compressor.facts

    @property
    def _constants(self) -> Constants:
        return Constants(self.rounded, self.compressor.get)

    def _emitted(self, package: PackagePlan) -> "_Emitted":
        emission = self.emissions.of(package.programs, self.laid.dtype, package.recipes)
        metadata = {"topoc.build": self.identity.build, "topoc.chunk": package.name}
        return _Emitted(
            path=self.writer.directory / package.path,
            model=emission.serialised(self._constants.values, metadata),
            records=emission.records,
        )

    def _made(self, weights: list[Weight]) -> Iterator[object]:
        """A step for each weight that came into the cache."""
        if self.jobs == 1 or len(weights) == 1:
            yield from map(self.compressor.get, weights)
            return
        work = self._work()
        with self._pool(len(weights), work) as pool:
            tasks = {pool.submit(_compressed, weight): weight for weight in weights}
            for task in as_completed(tasks):
                yield _result(task, tasks[task].key)

    def _write_together(self, packages: tuple[PackagePlan, ...]) -> Facts:
        """The largest first."""
        order = sorted(packages, key=lambda one: -one.written_bytes)
        work = self._work(tuple(self._emitted(one) for one in order))
        with self._pool(len(order), work) as pool:
            tasks = {pool.submit(_written, at): package for at, package in enumerate(order)}
            for task in as_completed(tasks):
                package = tasks[task]
                facts, digests = _result(task, package.name)
                self.compressor.facts |= facts
                self.digests.update(digests)
                self.progress.begin(f"{package.name} is written", package.written_bytes)
                self.progress.advance(package.written_bytes)
        return self.compressor.facts

    def _work(self, packages: "tuple[_Emitted, ...]" = ()) -> "_Work":
        compressor = self.compressor
        return _Work(
            architecture=self.laid.architecture,
            checkpoint=str(compressor.weights.reader.path),
            settings=Settings.of(compressor),
            reuse=self.rounded.reuse.elsewhere(),
            packages=packages,
            written=self.rounded.written,
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


@frozen(kw_only=True)
class _Work:
    """What a process needs for all its tasks; it opens the checkpoint for itself.

    All that is large is here. What goes with a task waits in a pipe for a process to read it, and
    if all of them were killed meanwhile, the pool would wait for ever.
    """

    architecture: Architecture
    checkpoint: str
    settings: Settings
    reuse: Reuse
    packages: "tuple[_Emitted, ...]" = ()  # those that tasks name by their places
    written: Mapping[RoundedKey, Extent] = field(factory=dict)


_WORK: list[_Work] = []
"""Of this process, where it is a worker."""


@cache
def _compressor() -> Compressor:
    """The one of this process, made in its first task: what it finds is then told."""
    work = _WORK[-1]
    weights = bind(open_checkpoint(work.checkpoint), work.architecture)
    return work.settings.compressor(weights)


def _begin(lock: Any, work: _Work) -> None:  # the lock's class is the bundle's
    follow(lock)
    _WORK.append(work)


def _compressed(weight: Weight) -> _Findings | None:
    """Compress one weight in a worker."""
    try:
        _compressor().get(weight)
    except TopocError as failure:
        return _Findings(failure.findings)
    return None


@frozen(kw_only=True)
class _Emitted:
    """A package whose constants are yet to be written."""

    path: Path
    model: bytes = field(repr=False)
    records: list[Record] = field(repr=False)

    def write(self, constants: Constants) -> dict[Path, str]:
        """Stream its weights, each once; gives the SHA-256 of the weight file."""
        file = prepare(self.path)
        digest = constants.write(self.records, file)
        write_description(self.path, self.model)
        return {file: digest}


def _written(at: int) -> tuple[Facts, dict[Path, str]] | _Findings:
    """Write one of the packages in a worker; gives what is told of weights and of files."""
    work = _WORK[-1]
    try:
        compressor = _compressor()
        rounded = Rounded(compressor.weights, lambda _: None, work.reuse, dict(work.written))
        digests = work.packages[at].write(Constants(rounded, compressor.get))
    except TopocError as failure:
        return _Findings(failure.findings)
    return compressor.facts, digests
