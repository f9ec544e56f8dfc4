"""From a topology and a checkpoint to a bundle: the whole compile, one phase after another."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from attrs import field, frozen

from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.dsl.format import flatten
from topoc.dsl.model import Topology
from topoc.lowering import manifest
from topoc.lowering.architecture import Architecture
from topoc.lowering.bundle.reader import MANIFEST, BundleWriter, open_bundle
from topoc.lowering.bundle.worker import follow
from topoc.lowering.calibration import calibration_tokens
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.digest import digest
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.checkpoint.reader import Reader
from topoc.lowering.checkpoint.weights import Weights
from topoc.lowering.describe import Identity, Written, describe, toolchain
from topoc.lowering.emit.mil import emit
from topoc.lowering.interpret.ranges import measure
from topoc.lowering.ir import DType
from topoc.lowering.lint.streams import streams_checked
from topoc.lowering.package import BlobWriter, prepare, write_description
from topoc.lowering.plan import PackagePlan, Plan, plan
from topoc.lowering.progress import Progress, Silent
from topoc.lowering.refuse import refusals
from topoc.lowering.rescale import Range, Scales, scales_for
from topoc.lowering.stored import Extent, PackageSink, Rounded, RoundedKey
from topoc.lowering.tables import (
    per_layer_bytes,
    table_bytes,
    write_per_layer,
    write_ropes,
    write_table,
)
from topoc.lowering.tokenizer import find_tokenizer, write_tokenizer


@frozen(kw_only=True)
class Request:
    """What to compile, and how."""

    topology: Topology
    architecture: Architecture
    reader: Reader
    precision: DType = DType.FP16
    rescale: bool = True  # off only to show what the pass is for
    only_chunk: str | None = None  # rebuild this package, keep the others of the same build
    jobs: int = 1  # processes that write packages; the bytes don't depend on it
    lint: manifest.Lint = field(factory=manifest.Lint)  # what rules said of text and programs
    revisit: str | None = None
    calibrate: str | None = None  # a text that says which inputs of projections are large
    error_feedback: bool = False  # columns make up for the error of others, by that text


def compile_bundle(
    request: Request, directory: Path, progress: Progress | None = None
) -> manifest.Manifest:
    """Write the bundle; after any error the directory is as it was before.

    Raises TopocError with what the topology, the checkpoint or the disk stood in the way of.
    """
    refused = tuple(refusals(request.topology))
    if refused:
        raise TopocError(*refused)
    weights = bind(request.reader, request.architecture)
    with BundleWriter(directory) as writer:
        job = Job(request=request, weights=weights, writer=writer, progress=progress or Silent())
        return writer.seal(job.run())


@frozen(kw_only=True)
class Job:
    """One compile, writing into a directory that is no bundle yet."""

    request: Request
    weights: Weights
    writer: BundleWriter
    progress: Progress

    def run(self) -> manifest.Manifest:
        """Every phase but the commit."""
        request, directory = self.request, self.writer.directory
        found = find_tokenizer(request.reader, request.architecture.config)
        tokenizer = () if found is None else write_tokenizer(found, directory)
        ranges = self._ranges(directory if tokenizer else None)
        eps, layers = request.architecture.norms.eps, len(request.architecture.layers)
        scales = scales_for(ranges, eps) if request.rescale else Scales.none(layers)
        laid = plan(request.topology, request.architecture, dtype=request.precision, scales=scales)
        identity = self._identity(scales)
        rounded = Rounded(self.weights, lambda weight: self.progress.advance(weight.type.bytes))
        (directory / "config.json").write_bytes(request.architecture.config.read_bytes())
        flat = flatten(request.topology, "config.json")
        (directory / "topology.topo").write_text(flat, encoding="utf-8", newline="\n")
        written = Written(
            identity=identity,
            tables=self._tables(laid, rounded),
            per_layer=write_per_layer(laid, rounded, directory),
            ropes=write_ropes(laid, directory),
            tokenizer=tokenizer,
            scales=scales,
            ranges=ranges,
            lint=self._linted(ranges, scales),
            revisit=request.revisit,
        )
        self._packages(laid, rounded, identity)
        return describe(laid, written)

    def _ranges(self, tokenizer: Path | None) -> tuple[Range, ...]:
        self.progress.begin("measuring the residual stream", 0)
        architecture = self.request.architecture
        return measure(architecture, self.weights, calibration_tokens(architecture, tokenizer))

    def _linted(self, ranges: tuple[Range, ...], scales: Scales) -> manifest.Lint:
        """What the rules said, with those on the stream; fp32 holds any, and a proof may not."""
        request = self.request
        if request.precision is not DType.FP16 or not request.rescale:
            return request.lint
        return streams_checked(request.lint, request.reader.path, ranges, scales)

    def _identity(self, scales: Scales) -> Identity:
        """The build id is a hash of all that decides what the bundle's bytes are."""
        request = self.request
        self.progress.begin("hashing the weights", 0)
        config = hashlib.sha256(request.architecture.config.read_bytes()).hexdigest()
        weights = digest(self.weights.reader)
        flat = flatten(request.topology, "config.json")
        versions = sorted(toolchain().items())
        inputs = (flat, config, weights, request.precision.value, scales, versions)
        build = hashlib.sha256(repr(inputs).encode()).hexdigest()
        return Identity(build=build, config_sha256=config, weights_sha256=weights)

    def _tables(self, laid: Plan, rounded: Rounded) -> dict[str, manifest.Table]:
        """Host tables."""
        sizes = {name: table_bytes(laid, name) for name in laid.host_tables}
        packages = sum(package.loaded_bytes for package in laid.packages)
        self.progress.expect(sum(sizes.values()) + per_layer_bytes(laid) + packages)
        tables = {}
        for name, size in sizes.items():
            self.progress.begin(name, size)
            tables[name] = write_table(laid, rounded, self.writer.directory, name)
        return tables

    def _packages(self, laid: Plan, rounded: Rounded, identity: Identity) -> None:
        """Packages, after the tables, so that a tied head is copied from there."""
        directory, progress = self.writer.directory, self.progress
        kept = [p for p in laid.packages if self.request.only_chunk not in {None, p.name}]
        self._keep(kept, identity)
        fresh = tuple(package for package in laid.packages if package not in kept)
        if self.request.jobs > 1 and len(fresh) > 1:
            self._write_together(laid, fresh, rounded, identity)
            return
        for package in fresh:
            progress.begin(package.name, package.loaded_bytes)
            write_package(laid, package, rounded, directory / package.path, identity)

    def _write_together(
        self, laid: Plan, packages: tuple[PackagePlan, ...], rounded: Rounded, identity: Identity
    ) -> None:
        """Each package in a process of its own, the largest first; the bytes are the same."""
        pool = ProcessPoolExecutor(
            min(self.request.jobs, len(packages)),
            mp_context=get_context("spawn"),
            initializer=follow,
            initargs=(self.writer.lock,),
        )
        try:
            tasks = {
                pool.submit(self._task(laid, package, rounded, identity).run): package
                for package in sorted(packages, key=lambda one: -one.loaded_bytes)
            }
            for task in as_completed(tasks):
                _finish(task, tasks[task])
                self.progress.begin(f"{tasks[task].name} is written", tasks[task].loaded_bytes)
                self.progress.advance(tasks[task].loaded_bytes)
        finally:
            pool.shutdown(cancel_futures=True)

    def _task(
        self, laid: Plan, package: PackagePlan, rounded: Rounded, identity: Identity
    ) -> "_Task":
        return _Task(
            laid=laid,
            package=package,
            checkpoint=str(self.weights.reader.path),
            written=rounded.written,
            path=self.writer.directory / package.path,
            identity=identity,
        )

    def _keep(self, packages: list[PackagePlan], identity: Identity) -> None:
        """Take packages over from the bundle that stands, if it is of the same build."""
        if not packages:
            return
        old = open_bundle(self.writer.path)
        if old.manifest.build != identity.build:
            words = f"`{self.writer.path.name}` is of another build than this compile"
            place = Place(str(self.writer.path / MANIFEST), "build")
            way = "compile all chunks: leave out --chunk"
            raise TopocError(error("bundle.mixed-builds", words, place, help=way))
        for package in packages:
            source = self.writer.path / package.path
            target = self.writer.directory / package.path
            shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    """One file under two names; a copy on a disk that knows no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _finish(task: "Future[tuple[Diagnostic, ...]]", package: PackagePlan) -> None:
    """Raise what a process found, or that it ended before it was done."""
    try:
        findings = task.result()
    except BrokenProcessPool as broken:
        words = f"the process that wrote `{package.name}` ended before it was done"
        way = "there may be too little memory: compile with --jobs 1"
        lost = error("bundle.worker-lost", words, Place(package.path), help=way)
        raise TopocError(lost) from broken
    if findings:
        raise TopocError(*findings)


def write_package(
    laid: Plan, package: PackagePlan, rounded: Rounded, path: Path, identity: Identity
) -> None:
    """Emit the programs of a package and stream its weights, each once."""
    metadata = {"topoc.build": identity.build, "topoc.chunk": package.name}
    with BlobWriter(prepare(path)) as blob:
        sink = PackageSink(rounded, blob)
        model = emit(package.programs, sink=sink, metadata=metadata, dtype=laid.dtype)
    write_description(path, model)


@frozen(kw_only=True)
class _Task:
    """What a process needs to write one package; it opens the checkpoint for itself."""

    laid: Plan
    package: PackagePlan
    checkpoint: str
    written: Mapping[RoundedKey, Extent]
    path: Path
    identity: Identity

    def run(self) -> tuple[Diagnostic, ...]:
        """Write the package; findings come back as data, since errors of ours don't pickle."""
        try:
            weights = bind(open_checkpoint(self.checkpoint), self.laid.architecture)
            rounded = Rounded(weights, lambda _: None, dict(self.written))
            write_package(self.laid, self.package, rounded, self.path, self.identity)
        except TopocError as failure:
            return failure.findings
        return ()
