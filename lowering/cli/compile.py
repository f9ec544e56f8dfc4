"""`topoc compile`: a topology and a checkpoint to a bundle."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
from attrs import evolve, frozen

from topoc.dsl.cli import options, view
from topoc.dsl.diagnostic import Diagnostic, Place, Severity, TopocError, error
from topoc.dsl.lint.engine import Options, is_allowable, lint
from topoc.dsl.lint.rules import CODES, MIL, TOPOLOGY
from topoc.dsl.load import load
from topoc.dsl.model import Topology
from topoc.lowering.cli.size import size

if TYPE_CHECKING:
    from topoc.lowering.emissions import Emissions
    from topoc.lowering.manifest import Lint, Manifest
    from topoc.lowering.request import Request

VERDICTS = frozenset({"shelved", "rejected", "abandoned"})
REVIVED = "ledger.revived-verdict"


@frozen(kw_only=True)
class Asked:
    """The command line: one field an option."""

    file: str
    weights: str | None
    output: Path | None
    precision: str
    functions: tuple[str, ...]
    chunk: str | None
    jobs: int
    allow: dict[str, str]  # code to reason
    revisit: str | None
    pad_groups: bool
    no_cache: bool
    calibrate: Path | None
    error_feedback: bool
    name: str | None
    define: tuple[tuple[str, float], ...]
    model: Path | None


def _reasoned(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """CODE=REASON, each with a reason."""
    split = [one.partition("=") for one in given]
    for code, _equals, reason in split:
        if not reason.strip():
            message = f"{code!r} has no reason; write {code or 'CODE'}=REASON"
            raise click.BadParameter(message)
        if not is_allowable(code):
            message = f"{code!r} is no finding that may be accepted; `topoc rules` lists them"
            raise click.BadParameter(message)
    return {code: reason for code, _equals, reason in split}


@click.command("compile")
@click.argument("file", metavar="FILE")
@click.option("--weights", help="A folder, a .safetensors or .gguf file, or random:SEED.")
@click.option(
    "-o", "output", type=click.Path(path_type=Path), help="The bundle; ./NAME by default."
)
@click.option("--precision", type=click.Choice(["fp16", "fp32"]), default="fp16", show_default=True)
@click.option("--function", "functions", multiple=True, help="Only this function; repeatable.")
@click.option("--chunk", help="Rebuild one package of a bundle of the same build.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--allow", multiple=True, callback=_reasoned, metavar="CODE=REASON", help="Accept a finding."
)
@click.option("--revisit", metavar="EVIDENCE", help="Why a verdict is set aside.")
@click.option("--pad-groups", is_flag=True, help="Fill up the last group of a palettized weight.")
@click.option("--no-cache", is_flag=True, help="Compress anew, and keep nothing for later.")
@click.option(
    "--calibrate",
    type=click.Path(path_type=Path),
    metavar="TEXTFILE",
    help="Let errors count by what inputs this text causes; scale activations by it.",
)
@click.option(
    "--error-feedback",
    is_flag=True,
    help="Let columns make up for the error of others; at most 4 bits, slow.",
)
@options.topology
@options.define
@options.model
def command(file: str, **options: Any) -> None:  # as `Asked` names and types them
    """Compile FILE, or a shipped topology of that name, to a bundle."""
    from topoc.lowering.ahead import looking_ahead
    from topoc.lowering.cli.progress import Lines
    from topoc.lowering.compiler import compile_bundle
    from topoc.lowering.emissions import Emissions
    from topoc.lowering.emit.mil.templates import Templates
    from topoc.lowering.kept import Kept

    asked = Asked(file=file, **options)
    topology, found = _checked(asked)
    topology = _narrowed(topology, asked)
    directory = asked.output or Path(topology.name)
    emissions = Emissions(Templates(None if asked.no_cache else Kept()))
    request = evolve(_request(topology, asked), emissions=emissions)
    with looking_ahead(request):
        found += _check_programs(topology, asked, emissions)
        request = evolve(request, lint=_linted(topology, asked.allow, found))
        made = compile_bundle(request, directory, Lines())
    view.problems(_kept(_low_sqnr(topology, made, directory), asked))
    _tell(made, directory)


def _request(topology: Topology, asked: Asked) -> "Request":
    """What is asked for, but for what rules say of it."""
    from topoc.lowering.architecture import read
    from topoc.lowering.checkpoint.default import find_weights
    from topoc.lowering.checkpoint.open import open_checkpoint
    from topoc.lowering.compress.cache import Cache
    from topoc.lowering.ir import DType
    from topoc.lowering.request import Request

    config = topology.layers.config
    return Request(
        topology=topology,
        architecture=read(config),
        reader=open_checkpoint(asked.weights or find_weights(config)),
        precision=DType(asked.precision),
        only_chunk=asked.chunk,
        jobs=asked.jobs,
        revisit=asked.revisit,
        pad_groups=asked.pad_groups,
        cache=None if asked.no_cache else Cache(),
        calibrate=_text(asked),
        error_feedback=asked.error_feedback,
    )


def _text(asked: Asked) -> str | None:
    """The text to calibrate on."""
    from topoc.lowering.calibration import read_text

    if asked.calibrate is None:
        if asked.error_feedback:
            words = "error feedback needs to know what the projections read"
            way = "name a text with --calibrate"
            raise TopocError(error("calibrate.unused", words, Place("--error-feedback"), help=way))
        return None
    return read_text(asked.calibrate)


def _checked(asked: Asked) -> tuple[Topology, tuple[Diagnostic, ...]]:
    """The topology and what was found in it, once nothing of that stops a compile."""
    topology, findings = load(
        asked.file, name=asked.name, define=dict(asked.define), model=asked.model
    )
    kept = _kept(findings, asked)
    stopping = [one for one in kept if one.severity is Severity.ERROR]
    if topology is not None and not stopping:
        stopping += _verdict(topology, asked.revisit)
    if topology is None or stopping:
        view.problems(stopping or kept)
        raise SystemExit(view.FINDINGS)
    view.problems(kept)
    return topology, kept


def _kept(findings: tuple[Diagnostic, ...], asked: Asked) -> tuple[Diagnostic, ...]:
    """The findings that the command line does not accept."""
    accepted = {*asked.allow, *((REVIVED,) if asked.revisit else ())}
    return tuple(one for one in findings if not (one.code in accepted and is_allowable(one.code)))


def _check_programs(
    topology: Topology, asked: Asked, emissions: "Emissions"
) -> tuple[Diagnostic, ...]:
    """What rules find in the programs, where it stops nothing; notes are for `lint --mil`."""
    from topoc.lowering.cli.lint import of_programs

    told = lint(topology)
    found = of_programs(topology, Options(), emissions).findings
    fresh = tuple(one for one in found if one not in told and one.severity > Severity.NOTE)
    kept = _kept(fresh, asked)
    view.problems(kept)
    if any(one.severity is Severity.ERROR for one in kept):
        raise SystemExit(view.FINDINGS)
    return kept


def _low_sqnr(topology: Topology, made: "Manifest", bundle: Path) -> tuple[Diagnostic, ...]:
    """Weights that kept too little, at the lines that chose their schemes."""
    from topoc.lowering.architecture import read
    from topoc.lowering.lint.tensors import LOW_SQNR, low_sqnr

    if any(one.code == LOW_SQNR for one in made.lint.allowed):
        return ()
    architecture = read(topology.layers.config)
    return low_sqnr(str(bundle), architecture, made.quantization, topology)


def _verdict(topology: Topology, revisit: str | None) -> list[Diagnostic]:
    if topology.status not in VERDICTS or revisit:
        return []
    words = f"`{topology.name}` was {topology.status}, and nothing says what is new"
    at = topology.span or Place(topology.name)
    way = 'say it with --revisit "new evidence", which goes into the manifest'
    return [error(REVIVED, words, at, help=way)]


def _narrowed(topology: Topology, asked: Asked) -> Topology:
    """Only the functions asked for; they and the chunk must be known."""
    functions, chunk = asked.functions, asked.chunk
    known = {one.name for one in topology.functions}
    unknown = [one for one in functions if one not in known]
    if unknown:
        words = f"`{topology.name}` has no function `{unknown[0]}`"
        way = f"it has {', '.join(sorted(known))}"
        raise TopocError(error("function.unknown", words, Place(topology.name), help=way))
    chunks = [one.name for one in topology.chunks]
    if chunk is not None and chunk not in chunks:
        words = f"`{topology.name}` has no chunk `{chunk}`"
        way = f"it has {', '.join(chunks)}"
        raise TopocError(error("allow.unknown-chunk", words, Place(topology.name), help=way))
    if not functions:
        return topology
    kept = tuple(one for one in topology.functions if one.name in functions)
    return evolve(topology, functions=kept)


def _linted(topology: Topology, allow: dict[str, str], found: tuple[Diagnostic, ...]) -> "Lint":
    """What the manifest says of the rules: those of texts and of programs all ran."""
    from topoc.lowering.manifest import Allowed, Lint

    written = [Allowed(code=one.code, reason=one.reason) for one in topology.allowances]
    given = [Allowed(code=code, reason=reason) for code, reason in sorted(allow.items())]
    warned = {one.code for one in found if one.severity is Severity.WARNING and one.code in CODES}
    return Lint(
        ran=tuple(sorted({*TOPOLOGY, *MIL})),
        allowed=(*written, *given),
        warned=tuple(sorted(warned)),
    )


def _tell(manifest: "Manifest", directory: Path) -> None:
    """What the bundle holds, what nobody has proved, and what to do next."""
    whole = sum(one.bytes for one in manifest.files)
    view.result(f"{directory}: {size(whole)}, build {manifest.build[:12]}")
    for one in manifest.files:
        view.result(f"  {one.path:24}{size(one.bytes):>10}")
    names = ", ".join(one.name for one in manifest.functions)
    view.result(f"functions: {names}; context {manifest.model.context}")
    if not manifest.tokenizer:
        view.result("no tokenizer came with the weights: `topoc run` takes --prompt-ids")
    switches = sorted(set(manifest.residual_scales), reverse=True)
    if switches != [1.0]:
        peak = max(manifest.residual_peaks)
        scales = ", ".join(f"2^{scale.hex().partition('p')[2]}" for scale in switches)
        view.result(f"residual stream: |x| up to {peak:.0f}, held at {scales}")
    for claim in manifest.unproven:
        view.result(f"unproven: {claim}")
    prompt = "--prompt TEXT" if manifest.tokenizer else "--prompt-ids 2,651"
    view.result(f"here:     topoc run {quote(str(directory))} {prompt}")
    view.result(f"on a Mac: topoc run {quote(str(directory))} {prompt} --engine coreml")
