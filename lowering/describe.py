"""The manifest of a compiled plan."""

from importlib.metadata import version
from pathlib import Path

from attrs import asdict, frozen

from topoc.dsl.model import COREML_LLM
from topoc.lowering import manifest
from topoc.lowering.features.runtime_files import unproven
from topoc.lowering.plan import Plan
from topoc.lowering.rescale import Range, Scales
from topoc.lowering.version import VERSION

UNPROVEN = (
    "placement: no Neural Engine has compiled or run these packages",
    "speed: no device has timed them",
    "rounding: an accelerator may accumulate, or flush subnormals, unlike the interpreter",
)


@frozen(kw_only=True)
class Identity:
    """Where a bundle comes from."""

    build: str
    config_sha256: str
    weights_sha256: str


@frozen(kw_only=True)
class Written:
    """What the compile wrote beside the packages, and what it measured."""

    identity: Identity
    tables: dict[str, manifest.Table]
    per_layer: manifest.PerLayer | None
    ropes: dict[str, manifest.RopeTable]
    tokenizer: tuple[Path, ...]  # relative to the bundle
    scales: Scales
    ranges: tuple[Range, ...]
    lint: manifest.Lint
    revisit: str | None


def toolchain() -> dict[str, str]:
    """The versions that decide what a bundle's bytes are."""
    return {"topoc": VERSION, "coremltools": version("coremltools")}


def describe(
    plan: Plan, written: Written, quantization: manifest.Quantization | None
) -> manifest.Manifest:
    """The manifest, but for its list of files."""
    topology = plan.topology
    target = {name: value for name, value in asdict(topology.target).items() if value is not None}
    return manifest.Manifest(
        schema=manifest.SCHEMA,
        build=written.identity.build,
        name=topology.name,
        status=topology.status,
        precision=plan.dtype.float_name,
        toolchain=toolchain(),
        target=target,
        model=_model(plan, written.identity),
        tables=written.tables,
        ropes=written.ropes,
        buffers=plan.buffers,
        functions=plan.functions,
        per_layer=written.per_layer,
        tokenizer=tuple(path.as_posix() for path in written.tokenizer),
        residual_scales=written.scales.residual,
        residual_peaks=tuple(one.stream.peak for one in written.ranges),
        quantization=quantization,
        lint=written.lint,
        revisit=written.revisit,
        unproven=_unproven(plan, written),
    )


def _unproven(plan: Plan, written: Written) -> tuple[str, ...]:
    """What only a device can show, and, of a runtime's profile, only that runtime."""
    if plan.topology.features != COREML_LLM:
        return UNPROVEN
    tokenizer = bool(written.tokenizer)
    return (*UNPROVEN, *unproven(plan.topology, plan.architecture, tokenizer=tokenizer))


def _model(plan: Plan, identity: Identity) -> manifest.ModelInfo:
    arch = plan.architecture
    return manifest.ModelInfo(
        family=arch.family,
        layers=len(arch.layers),
        hidden=arch.hidden,
        vocabulary=arch.vocabulary,
        context=plan.topology.context,
        bos=arch.bos,
        eos=arch.eos,
        config_sha256=identity.config_sha256,
        weights_sha256=identity.weights_sha256,
    )
