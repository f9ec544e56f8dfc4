"""What a bundle's compression costs each projection, on the inputs that a text causes."""

from collections.abc import Iterator, Mapping

import torch

from topoc.lowering.architecture import read
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.calibration import Windows
from topoc.lowering.checkpoint.weights import Weights
from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.dequantise import dense
from topoc.lowering.compress.source import spans
from topoc.lowering.compressed import Matrix
from topoc.lowering.interpret.walk import Walk
from topoc.lowering.parity.shipped import Run, joined, topology_of
from topoc.lowering.plan import plan
from topoc.lowering.recipes import matrices
from topoc.lowering.threads import one_thread


def is_calibrated(bundle: Bundle) -> bool:
    """Whether a text decided on some of the bundle's tables."""
    said = bundle.manifest.quantization
    return said is not None and any(one.output_error is not None for one in said.tensors)


def plain(bundle: Bundle, weights: Weights) -> dict[str, torch.Tensor]:
    """The weights as the bundle's recipes make them without a text, by role: (O, I)."""
    laid = plan(topology_of(bundle), read(bundle.path / "config.json"))
    found: dict[Run, torch.Tensor] = {}
    for package in laid.packages:
        for weight in matrices(package.programs):
            how = package.recipes.get(weight.role)
            if how is not None:
                made = compress(Matrix(weights, weight), how, pad_groups=True)
                found[weight.role, weight.first or 0] = torch.from_numpy(dense(made)).float()
    return joined(found)


def output_errors(
    weights: Weights, held: Mapping[str, torch.Tensor], windows: Windows
) -> dict[str, float]:
    """The error of each projection's output over its power, by role.

    Each projection reads what the checkpoint itself gives it on these windows of tokens.
    """
    lost, whole = dict.fromkeys(held, 0.0), dict.fromkeys(held, 0.0)
    with one_thread(), torch.inference_mode():
        for visit in Walk(weights.architecture, weights, windows).visits():
            for role in visit.reads.keys() & held.keys():
                x = visit.values[visit.reads[role]][0, :, 0]
                for start, stop in spans(0, *held[role].shape):
                    true = weights.rows(role, start, stop)
                    gone = (true - held[role][start:stop]) @ x
                    lost[role] += float(gone.square().sum(dtype=torch.float64))
                    whole[role] += float((true @ x).square().sum(dtype=torch.float64))
    return {role: lost[role] / whole[role] if whole[role] else 0.0 for role in held}


def by_layer(errors: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The mean over the projections of a layer, the worst layer first."""
    layers: dict[str, list[float]] = {}
    for role, one in errors.items():
        group, _, rest = role.partition(".")
        name = f"L{rest.partition('.')[0]}" if group == "layers" else "outside"
        layers.setdefault(name, []).append(one)
    means = {name: sum(many) / len(many) for name, many in layers.items()}
    yield from sorted(means.items(), key=lambda item: (-item[1], item[0]))
