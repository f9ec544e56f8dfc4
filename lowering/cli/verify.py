"""`topoc verify`: a bundle against its checkpoint, or two bundles against each other."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topoc.dsl.cli import view
from topoc.dsl.diagnostic import Place, TopocError, error

if TYPE_CHECKING:
    from topoc.lowering.bundle.reader import Bundle
    from topoc.lowering.checkpoint.weights import Weights
    from topoc.lowering.parity.oracle import Oracle
    from topoc.lowering.parity.proof import Verdict

NAMES = {
    "i": "(i) fp32 build",
    "ii": "(ii) fp16 weights",
    "ii-unrounded": "(ii) fp16 weights",
    "iii": "(iii) fp16 arithmetic",
    "iv": "(iv) as compressed",
}


class _Positions(click.ParamType[tuple[int, ...]]):
    name = "0,1,511"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:  # click hands over what it was given
        """Distinct positions in order."""
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() for part in parts):
            self.fail(f"{value!r} is no list of positions, as in 0,1,511", param, ctx)
        return tuple(sorted({int(part) for part in parts}))


@click.command("verify")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path), required=False)
@click.option("--weights", help="The checkpoint: a folder, a file, or random:SEED.")
@click.option("--positions", type=_Positions(), help="Where to compare; by default where it tells.")
@click.option("--ladder", is_flag=True, help="What compression costs, on --text FILE.")
@click.option("--text", type=click.Path(path_type=Path), help="UTF-8 text for --ladder.")
def command(
    bundle: Path,
    other: Path | None,
    *,
    weights: str | None,
    positions: tuple[int, ...] | None,
    ladder: bool,
    text: Path | None,
) -> None:
    """Compare the logits of BUNDLE with transformers', or with those of OTHER."""
    from topoc.lowering.bundle.reader import open_bundle

    if ladder or text is not None:
        if not ladder or text is None or other is not None or positions is not None:
            message = "--ladder goes with --text, and with neither OTHER nor --positions"
            raise click.UsageError(message)
        raise SystemExit(_climbed(open_bundle(bundle), weights, text))
    opened = open_bundle(bundle)
    raise SystemExit(_compared(opened, other, weights, positions))


def _climbed(bundle: "Bundle", weights: str | None, text: Path) -> int:
    from topoc.lowering.cli.ladder import climb

    bound = _bound(bundle, weights)
    kept = climb(bundle, bound, _oracle(bundle, bound), text)
    return view.CLEAN if kept else view.FINDINGS


def _compared(
    opened: "Bundle", other: Path | None, weights: str | None, positions: tuple[int, ...] | None
) -> int:
    from topoc.lowering.bundle.reader import open_bundle
    from topoc.lowering.parity.proof import agree, default_positions, prove

    places = positions or default_positions(opened.manifest)
    _within(opened, places)
    view.progress(f"comparing at positions {', '.join(map(str, places))}")
    if other is not None:
        twin = open_bundle(other)
        _within(twin, places)
        verdicts = iter([agree(opened, twin, places)])
    else:
        verdicts = prove(opened, _oracle(opened, _bound(opened, weights)), places)
    kept = [_tell(verdict) for verdict in verdicts]
    return view.CLEAN if all(kept) else view.FINDINGS


def _within(bundle: "Bundle", places: tuple[int, ...]) -> None:
    context = bundle.manifest.model.context
    if places[-1] >= context:
        words = f"position {places[-1]} is beyond the context of {context}"
        place = Place(str(bundle.path))
        raise TopocError(error("run.context-full", words, place, help="name earlier positions"))


def _bound(bundle: "Bundle", weights: str | None) -> "Weights":
    """The checkpoint that the bundle was made of."""
    from topoc.lowering.architecture import read
    from topoc.lowering.checkpoint.bind import bind
    from topoc.lowering.checkpoint.default import find_weights
    from topoc.lowering.checkpoint.digest import digest
    from topoc.lowering.checkpoint.open import open_checkpoint

    config = bundle.path / "config.json"
    bound = bind(open_checkpoint(weights or find_weights(config)), read(config))
    if digest(bound.reader) != bundle.manifest.model.weights_sha256:
        words = f"`{bound.reader.path}` is not the checkpoint that the bundle was compiled from"
        place = Place(str(bundle.path / "manifest.json"), "model.weights_sha256")
        way = "name that one with --weights"
        raise TopocError(error("verify.other-weights", words, place, help=way))
    return bound


def _oracle(bundle: "Bundle", weights: "Weights") -> "Oracle":
    """The reference model."""
    from topoc.lowering.parity.oracle import Oracle

    view.progress("building the reference")
    return Oracle.of(bundle.path / "config.json", weights)


def _tell(verdict: "Verdict") -> bool:
    """One line, and what did not hold."""
    found, outcome = verdict.found, "holds" if verdict.kept else "FAILS"
    view.result(
        f"{outcome}  {NAMES[verdict.gate]:22} against {verdict.against}: greatest |Δ|"
        f" {found.error:.2e} std, cosine {found.cosine:.7f}, {len(found.flips)} of"
        f" {len(found.positions)} greedy tokens differ"
    )
    if found.clear_flips:
        view.result(
            f"       clear of the error at positions {', '.join(map(str, found.clear_flips))}"
        )
    return verdict.kept
