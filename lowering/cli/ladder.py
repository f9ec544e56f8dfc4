"""What `topoc verify --ladder` tells: rung by rung, layer by layer, and the lines of `expect`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from topoc.dsl.cli import view
from topoc.lowering.calibration import encoded, read_text, windows

if TYPE_CHECKING:
    import torch

    from topoc.dsl.model import Budget
    from topoc.lowering.bundle.reader import Bundle
    from topoc.lowering.calibration import Windows
    from topoc.lowering.checkpoint.weights import Weights
    from topoc.lowering.parity.ladder import Form, Rung
    from topoc.lowering.parity.oracle import Oracle

MOST = 1024  # tokens of the text
WIDTH = 256  # tokens of a window: the logits of a large vocabulary fill memory
LAYERS = 5  # that are shown, the worst first

Held = Mapping[str, "torch.Tensor"]


def climb(bundle: "Bundle", weights: "Weights", oracle: "Oracle", text: Path) -> bool:
    """Print the ladder; whether every line of `expect` holds that it can tell of."""
    from topoc.lowering.parity.ladder import ladder
    from topoc.lowering.parity.shipped import shipped, topology_of

    told = _windows(bundle, weights, text)
    held = shipped(bundle)
    before = _before(bundle, weights)
    *_, last = _shown(ladder(oracle, list(_forms(bundle, held, before)), told))
    _layers(weights, {"as shipped": held, "plain": before}, told)
    return _kept(topology_of(bundle).budgets, last)


def _windows(bundle: "Bundle", weights: "Weights", text: Path) -> "Windows":
    tokenizer = bundle.path if bundle.manifest.tokenizer else None
    ids = encoded(weights.architecture, tokenizer, read_text(text), str(text))[:MOST]
    return windows(weights.architecture, ids, min(WIDTH, bundle.manifest.model.context))


def _before(bundle: "Bundle", weights: "Weights") -> Held:
    """The weights without a text to calibrate on; nothing where the bundle had none."""
    from topoc.lowering.parity.damage import is_calibrated, plain

    if not is_calibrated(bundle):
        return {}
    view.progress("compressing without calibration, to compare")
    return plain(bundle, weights)


def _forms(bundle: "Bundle", held: Held, before: Held) -> "Iterator[Form]":
    from topoc.lowering.parity.activations import activation_scales
    from topoc.lowering.parity.ladder import Form
    from topoc.lowering.parity.proof import coded_tables, named

    tables, config = coded_tables(bundle), bundle.path / "config.json"
    yield Form(name="fp16", rounded=True)
    if before:
        yield Form(name="plain", rounded=True, tables=tables, weights=named(config, before))
    last = Form(name="as shipped", rounded=True, tables=tables, weights=named(config, held))
    if scales := named(config, activation_scales(bundle)):
        yield evolve(last, name="weights")
    yield evolve(last, scales=scales)


def _shown(rungs: "Iterator[Rung]") -> "Iterator[Rung]":
    for rung in rungs:
        if rung.name == "fp32":
            view.result(f"{rung.positions} positions, against transformers in fp32")
            view.result(_line("", "KL", "cosine", "least", "top-1", "top-5", "perplexity"))
        view.result(
            _line(
                rung.name,
                f"{rung.kl:.5f}",
                f"{rung.cosine:.6f}",
                f"{rung.least:.6f}",
                f"{rung.top1:.3f}",
                f"{rung.top5:.3f}",
                f"{rung.perplexity:.3f}",
            )
        )
        yield rung


def _line(name: str, *values: str) -> str:
    return f"{name:12}" + "".join(f"{value:>11}" for value in values)


def _layers(weights: "Weights", forms: Mapping[str, Held], told: "Windows") -> None:
    """The output errors of layers on this text, the worst first, and what they were before."""
    from topoc.lowering.parity.damage import by_layer, output_errors

    made = {name: held for name, held in forms.items() if held}
    if not made:
        return
    errors = {n: dict(by_layer(output_errors(weights, h, told))) for n, h in made.items()}
    worst = list(errors["as shipped"])
    view.result(_line("output error", *errors))
    for layer in worst[:LAYERS]:
        view.result(_line(layer, *(f"{one[layer]:.5f}" for one in errors.values())))
    if len(worst) > LAYERS:
        mean = (sum(one.values()) / len(one) for one in errors.values())
        view.result(_line(f"mean of {len(worst)}", *(f"{one:.5f}" for one in mean)))


def _kept(budgets: "tuple[Budget, ...]", rung: "Rung") -> bool:
    """A line for each budget that a ladder can tell of."""
    from topoc.lowering.parity.ladder import MEASURES, breaches

    failed = [one.budget for one in breaches(budgets, rung)]
    for budget in budgets:
        if budget.measure in MEASURES:
            outcome = "FAILS" if budget in failed else "holds"
            found = getattr(rung, budget.measure)
            view.result(
                f"{outcome}  {budget.measure} {budget.relation} {budget.value:g}: {found:.5g}"
            )
    return not failed
