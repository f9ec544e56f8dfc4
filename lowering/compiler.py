"""From a topology and a checkpoint to a bundle: the whole compile, one phase after another."""

import hashlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.format import flatten
from topoc.lowering import manifest, measured
from topoc.lowering.activations import calibrated, scale_of
from topoc.lowering.bundle.reader import MANIFEST, BundleWriter, open_bundle
from topoc.lowering.calibration import Text, calibration_text
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.digest import digest
from topoc.lowering.checkpoint.weights import Weights
from topoc.lowering.compress.cache import Cache
from topoc.lowering.compress.method import METHOD
from topoc.lowering.compress.recipe import Palettize
from topoc.lowering.compressed import Compressor
from topoc.lowering.describe import Identity, Written, describe, toolchain
from topoc.lowering.features.limits import misfits
from topoc.lowering.features.runtime_files import write_runtime_files
from topoc.lowering.features.storage import HF_MODEL, is_for_runtime
from topoc.lowering.ir import DType
from topoc.lowering.kept import linked
from topoc.lowering.lint.streams import streams_checked
from topoc.lowering.lint.tensors import low_sqnr, tensors_checked
from topoc.lowering.packages import PackageWriter
from topoc.lowering.plan import PackagePlan, Plan, plan
from topoc.lowering.progress import Progress, Silent
from topoc.lowering.quantization import quantization
from topoc.lowering.refuse import refusals
from topoc.lowering.request import Request, check_recipes
from topoc.lowering.rescale import Range, Scales, scales_for
from topoc.lowering.reuse import Reuse
from topoc.lowering.stored import Rounded
from topoc.lowering.tables import (
    per_layer_bytes,
    table_bytes,
    write_per_layer,
    write_ropes,
    write_table,
)
from topoc.lowering.tokenizer import find_tokenizer, write_tokenizer

if TYPE_CHECKING:
    from topoc.lowering.interpret.calibrate import Inputs


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
        told = progress or Silent()
        told.begin("hashing the weights", 0)
        reuse = Reuse(digest(weights.reader, request.cache), request.cache)
        job = Job(request=request, weights=weights, writer=writer, progress=told, reuse=reuse)
        return writer.seal(job.run(), reuse.digests)


@frozen
class _Known:
    """What a compile knows before it writes."""

    tokenizer: tuple[Path, ...]
    ranges: tuple[Range, ...]
    scales: Scales
    identity: Identity
    inputs: "Inputs | None"


@frozen(kw_only=True)
class Job:
    """One compile, writing into a directory that is no bundle yet."""

    request: Request
    weights: Weights
    writer: BundleWriter
    progress: Progress
    reuse: Reuse

    def run(self) -> manifest.Manifest:
        """Every phase but the commit."""
        request = self.request
        unscaled = plan(request.topology, request.architecture, dtype=request.precision)
        check_recipes(request, unscaled, self.weights)
        tokenizer = self._tokenizer()
        folder = tokenizer[0].parent if tokenizer else None
        ranges, text = self._ranges(folder), self._text(folder)
        scales = self._scales(ranges)
        laid = plan(request.topology, request.architecture, dtype=request.precision, scales=scales)
        identity = self._identity(scales, text)
        with self._inputs(text) as inputs:
            if inputs is not None:
                laid = calibrated(laid, {role: scale_of(x) for role, x in inputs.peaks.items()})
            return self._write(laid, _Known(tokenizer, ranges, scales, identity, inputs))

    def _write(self, laid: Plan, known: _Known) -> manifest.Manifest:
        """Every file but the manifest."""
        request, directory = self.request, self.writer.directory
        rounded = Rounded(self.weights, self.progress.advance, self.reuse)
        (directory / "config.json").write_bytes(request.architecture.config.read_bytes())
        flat = flatten(request.topology, "config.json")
        (directory / "topology.topo").write_text(flat, encoding="utf-8", newline="\n")
        written = Written(
            identity=known.identity,
            tables=self._tables(laid, rounded),
            per_layer=write_per_layer(laid, rounded, directory),
            ropes=write_ropes(laid, directory),
            tokenizer=tuple(path.relative_to(directory) for path in known.tokenizer),
            scales=known.scales,
            ranges=known.ranges,
            lint=self._linted(known.ranges, known.scales),
            revisit=request.revisit,
        )
        if is_for_runtime(request.topology, request.precision):
            self._runtime_files()
        made = self._packages(laid, rounded, known)
        return describe(laid, self._judged(written, made), made)

    def _judged(self, written: Written, made: manifest.Quantization | None) -> Written:
        """With what rules say of the compressed weights."""
        request = self.request
        path = str(request.reader.path)
        found = low_sqnr(path, request.architecture, made, request.topology)
        return evolve(written, lint=tensors_checked(written.lint, found))

    def _tokenizer(self) -> tuple[Path, ...]:
        """The tokenizer's files, where hosts look for them; none where none came along."""
        request, folder = self.request, self.writer.directory
        found = find_tokenizer(request.reader, request.architecture.config)
        if found is None:
            return ()
        if is_for_runtime(request.topology, request.precision):
            folder /= HF_MODEL
            folder.mkdir()
        return write_tokenizer(found, folder, self.reuse)

    def _runtime_files(self) -> None:
        request = self.request
        write_runtime_files(
            request.topology,
            request.architecture,
            request.precision,
            request.reader.files,
            self.writer.directory,
        )

    def _ranges(self, tokenizer: Path | None) -> tuple[Range, ...]:
        self.progress.begin("measuring the residual stream", 0)
        architecture = self.request.architecture
        tokens = measured.tokens(architecture, tokenizer, self.reuse)
        return measured.ranges(architecture, self.weights, tokens, self.reuse)

    def _text(self, tokenizer: Path | None) -> Text | None:
        """The tokens of the text to calibrate on."""
        text = self.request.calibrate
        architecture = self.request.architecture
        return None if text is None else calibration_text(architecture, tokenizer, text)

    def _linted(self, ranges: tuple[Range, ...], scales: Scales) -> manifest.Lint:
        """What the rules said, with those on the stream; fp32 holds any, and a proof may not."""
        request = self.request
        if request.precision is not DType.FP16 or not request.rescale:
            return request.lint
        return streams_checked(request.lint, request.reader.path, ranges, scales)

    def _scales(self, ranges: tuple[Range, ...]) -> Scales:
        """What the ranges ask for, unless the topology's hosts can't have it."""
        architecture = self.request.architecture
        scales = Scales.none(len(architecture.layers))
        if self.request.rescale:
            scales = scales_for(ranges, architecture.norms.eps)
        misfit = tuple(misfits(self.request.topology, architecture, scales))
        if misfit:
            raise TopocError(*misfit)
        return scales

    def _identity(self, scales: Scales, text: Text | None) -> Identity:
        """The build id is a hash of all that decides what the bundle's bytes are."""
        request = self.request
        config = hashlib.sha256(request.architecture.config.read_bytes()).hexdigest()
        weights = self.reuse.checkpoint
        flat = flatten(request.topology, "config.json")
        versions = sorted(toolchain().items())
        padded, method = request.pad_groups, METHOD
        seen = () if text is None else (measured.digest(text), request.error_feedback)
        same = (flat, config, weights, request.precision.value, scales, versions, padded, method)
        inputs = (*same, *seen)
        build = hashlib.sha256(repr(inputs).encode()).hexdigest()
        return Identity(build=build, config_sha256=config, weights_sha256=weights)

    def _tables(self, laid: Plan, rounded: Rounded) -> dict[str, manifest.Table]:
        """Host tables."""
        sizes = {name: table_bytes(laid, name) for name in laid.host_tables}
        packages = sum(package.written_bytes for package in laid.packages)
        self.progress.expect(sum(sizes.values()) + per_layer_bytes(laid) + packages)
        tables = {}
        for name, size in sizes.items():
            self.progress.begin(name, size)
            tables[name] = write_table(laid, rounded, self.writer.directory, name, self.reuse)
        return tables

    def _packages(
        self, laid: Plan, rounded: Rounded, known: _Known
    ) -> manifest.Quantization | None:
        """Packages, after the tables, so that a tied head is copied from there."""
        request, only = self.request, self.request.only_chunk
        kept = [package for package in laid.packages if only not in {None, package.name}]
        before = self._keep(kept, known.identity)
        fresh = tuple(package for package in laid.packages if package not in kept)
        with self._compressor(laid, known) as compressor:
            packages = PackageWriter(
                laid=laid,
                rounded=rounded,
                identity=known.identity,
                compressor=compressor,
                emissions=request.emissions,
                writer=self.writer,
                progress=self.progress,
                jobs=request.jobs,
                digests=self.reuse.digests,
            )
            packages.compress(fresh)
            made = packages.write(fresh)
        return quantization(laid, made, before)

    @contextmanager
    def _compressor(self, laid: Plan, known: _Known) -> Iterator[Compressor]:
        """One that keeps what it makes, or forgets it when the packages are written."""
        with ExitStack() as stack:
            cache = self.request.cache
            if cache is None:
                cache = Cache(self._folder(stack), limit=sys.maxsize)
            recipes = {role: how for one in laid.packages for role, how in one.recipes.items()}
            weighed = any(isinstance(how, Palettize) for how in recipes.values())
            yield Compressor(
                self.weights,
                recipes,
                known.identity.weights_sha256,
                cache,
                pad_groups=self.request.pad_groups,
                inputs=known.inputs if weighed else None,
            )

    def _folder(self, stack: ExitStack) -> Path:
        """A folder that goes with the stack."""
        folder = TemporaryDirectory(prefix=".weights-", dir=self.writer.directory)
        return Path(stack.enter_context(folder))

    @contextmanager
    def _inputs(self, text: Text | None) -> "Iterator[Inputs | None]":
        """What projections read over the text; their products lie on disk meanwhile."""
        if text is None:
            yield None
            return
        self.progress.begin("watching what projections read", 0)
        with ExitStack() as stack:
            folder = self._folder(stack) if self.request.error_feedback else None
            architecture = self.request.architecture
            yield measured.inputs(architecture, self.weights, text, folder, self.reuse)

    def _keep(
        self, packages: list[PackagePlan], identity: Identity
    ) -> manifest.Quantization | None:
        """Take packages over from the bundle that stands, if it is of the same build.

        Gives what that bundle tells of its compressed weights.
        """
        if not packages:
            return None
        old = open_bundle(self.writer.path)
        if old.manifest.build != identity.build:
            words = f"`{self.writer.path.name}` is of another build than this compile"
            place = Place(str(self.writer.path / MANIFEST), "build")
            way = "compile all chunks: leave out --chunk"
            raise TopocError(error("bundle.mixed-builds", words, place, help=way))
        for package in packages:
            source = self.writer.path / package.path
            target = self.writer.directory / package.path
            shutil.copytree(source, target, copy_function=linked)
        return old.manifest.quantization
