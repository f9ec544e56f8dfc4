"""What `topoc lint` says of packages, of programs and of bundles; `dsl` calls by dotted names."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from topoc.dsl.diagnostic import Diagnostic, Severity, TopocError
from topoc.dsl.lint.checkpoint import Checkpoint, Stream
from topoc.dsl.lint.engine import Options, Report, Subjects
from topoc.dsl.lint.engine import examine as run
from topoc.dsl.lint.mil import Package
from topoc.dsl.lint.subject import Mil
from topoc.dsl.model import Target, Topology
from topoc.dsl.source import Span

if TYPE_CHECKING:
    from topoc.lowering.bundle.bundle import Bundle
    from topoc.lowering.emissions import Emissions
    from topoc.lowering.lint.programs import Emitted

TEXT = "topology.topo"
ASTRAY = frozenset({"bundle.path", "bundle.unreadable-file"})


def of_bundle(path: str) -> tuple[tuple[Diagnostic, ...], str | None]:
    """Everything that is wrong with a bundle, and its topology, if that may be read."""
    from topoc.lowering.bundle.reader import examine

    bundle, findings = examine(Path(path))
    text = Path(path) / TEXT
    if bundle is None or not text.is_file() or any(one.code in ASTRAY for one in findings):
        return findings, None
    return findings, str(text)


def _checkpoint(bundle: "Bundle") -> Checkpoint:
    """What the compile measured: compressed weights, and the stream on a prompt with BOS."""
    from topoc.lowering.architecture import read
    from topoc.lowering.lint.tensors import tensors

    said = bundle.manifest
    pairs = zip(said.residual_peaks, said.residual_scales, strict=False)
    streams = (Stream(layer=at, peak=p, scale=s) for at, (p, s) in enumerate(pairs))
    fp16 = any(one.dtype == "fp16" for one in said.buffers)
    architecture = None if said.quantization is None else read(bundle.path / "config.json")
    return Checkpoint(
        path=str(bundle.path),
        tensors=tuple(tensors(architecture, said.quantization)) if architecture else (),
        streams=tuple(streams) if fp16 else (),
    )


def packages_of_bundle(path: str, options: Options) -> Report:
    """What the rules say of a bundle's packages and of the residual stream that was measured.

    The bundle stands: notes are left out, and what was allowed in the text or on the command line.
    """
    from topoc.lowering.bundle.reader import examine
    from topoc.lowering.lint.files import read_package

    bundle, faults = examine(Path(path), check=False)
    if bundle is None or faults:
        return Report()
    allowed = {one.code for one in bundle.manifest.lint.allowed}
    units: dict[str, list[str]] = {}
    for function in bundle.manifest.functions:
        for step in function.steps:
            units.setdefault(step.package, []).append(step.unit)
    subjects = tuple(
        Mil(read_package(bundle.path / name), options.target or Target(unit=_meant(found)))
        for name, found in units.items()
    )
    report = run(Subjects(packages=subjects, checkpoint=_checkpoint(bundle)), options)
    kept = (one for one in report.findings if one.code not in allowed)
    return evolve(report, findings=tuple(one for one in kept if one.severity > Severity.NOTE))


def _meant(units: list[str]) -> str:
    """The Neural Engine, if some function may run there."""
    return next((one for one in units if one in {"ane", "all"}), units[0])


def of_ranges(path: str, prompt: str | None, ids: str | None) -> tuple[Diagnostic, ...]:
    """What the values of a bundle do on a prompt, by default the one that compiles measure with.

    It interprets the packages with their weights: some seconds for each hundred million of them.
    """
    import torch

    from topoc.dsl.load import load
    from topoc.lowering.bundle.reader import open_bundle
    from topoc.lowering.cli.run import prompt_of
    from topoc.lowering.engine.session import tokenizer_of
    from topoc.lowering.lint.ranges import findings, measured

    torch.set_num_threads(1)  # a second thread spins on a busy machine
    bundle = open_bundle(Path(path))
    if prompt is None and ids is None:
        tokens = _calibration(bundle)
    else:
        tokens = prompt_of(prompt, ids, chat=False).tokens(bundle, tokenizer_of(bundle))
    text = bundle.path / TEXT
    topology = load(text)[0] if text.is_file() else None
    return tuple(findings(measured(bundle, tokens), tokens, topology))


def _calibration(bundle: "Bundle") -> list[int]:
    from topoc.lowering.architecture import read
    from topoc.lowering.calibration import calibration_tokens

    tokenizer = bundle.path if bundle.manifest.tokenizer else None
    return calibration_tokens(read(bundle.path / "config.json"), tokenizer)


def of_package(path: str, options: Options) -> Report:
    """What the rules say of a package, or of all packages in a folder.

    What can't be read is among the findings of the others; alone it is raised.
    """
    from topoc.lowering.lint.files import packages_in, read_package

    subjects: list[Mil] = []
    unread: list[Diagnostic] = []
    for one in packages_in(Path(path)):
        try:
            subjects.append(Mil(read_package(one), options.target or Target()))
        except TopocError as failure:
            unread += failure.findings
    if not subjects:
        raise TopocError(*unread)
    report = run(Subjects(packages=tuple(subjects)), options)
    return evolve(report, findings=(*unread, *report.findings))


def of_programs(
    topology: Topology, options: Options, emissions: "Emissions | None" = None
) -> Report:
    """What the rules say of a topology and of the programs that it becomes.

    Findings point into the text. What a rule says of the text it does not say of its programs once
    more. Raises TopocError for what has no lowering yet.
    """
    from topoc.lowering.lint.programs import emitted

    if options.target is not None:
        topology = evolve(topology, target=options.target)
    packages = emitted(topology, emissions)
    subjects = Subjects(topology=topology, packages=tuple(one.subject for one in packages))
    report = run(subjects, options)
    return evolve(report, findings=tuple(_once(_pointed(packages, report.findings))))


def _pointed(
    packages: "tuple[Emitted, ...]", findings: tuple[Diagnostic, ...]
) -> Iterator[Diagnostic]:
    """Findings at lines of the text; those of programs go where the text has one of the code."""
    told = {one.code for one in findings if isinstance(one.at.at, Span)}
    for finding in findings:
        if isinstance(finding.at.at, Span):
            yield finding
        elif finding.code not in told:
            pointed = (one.point(finding) for one in packages)
            yield next((one for one in pointed if one is not finding), finding)


def _once(findings: Iterator[Diagnostic]) -> Iterator[Diagnostic]:
    """Functions of one chunk are built alike: what is found in several is told for the first."""
    seen = set()
    for finding in findings:
        key = (finding.code, finding.message, finding.at.at)
        if key not in seen:
            seen.add(key)
            yield finding


def check_plan(plan: Path) -> None:
    """Raises TopocError for a compute plan that can't be read."""
    from topoc.lowering.lint.compute_plan import read_plan

    read_plan(plan)


def ops_of(path: str, plan: Path | None) -> Iterator[str]:
    """The ops of packages with the units that are expected to run them, and a plan beside them.

    What can't be read is left out here: the findings tell of it.
    """
    from topoc.lowering.lint.files import packages_in, read_package

    for one in packages_in(Path(path)):
        try:
            package = read_package(one)
        except TopocError:
            continue
        yield from _listed(package, plan)


def ops_of_programs(topology: Topology, plan: Path | None) -> Iterator[str]:
    """The same of the programs that a topology becomes; TopocError for what has no lowering."""
    from topoc.lowering.lint.programs import emitted

    for one in emitted(topology):
        yield from _listed(one.subject.package, plan)


def _listed(package: Package, plan: Path | None) -> Iterator[str]:
    from topoc.lowering.lint.compute_plan import compare, read_plan
    from topoc.lowering.lint.text import comparison_text, ops_text

    yield ops_text(package)
    if plan is not None:
        read = read_plan(plan)
        yield comparison_text(read, compare(package, read))
