"""`topoc bench`: what each chunk and function of a bundle takes here."""

import platform
import subprocess
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from topoc.dsl.cli import view
from topoc.dsl.diagnostic import Place, TopocError, error

if TYPE_CHECKING:
    from topoc.lowering.engine.session import EngineName
    from topoc.lowering.engine.stopwatch import Figure
    from topoc.lowering.manifest import Function, Manifest


@click.command("bench")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--engine",
    type=click.Choice(["coreml", "interpreter"]),
    default="coreml",
    show_default=True,
    help="Core ML needs macOS; the interpreter is no device.",
)
@click.option("--function", "only", multiple=True, help="Only this function; repeatable.")
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--warm", type=click.IntRange(min=0), default=3, show_default=True)
@click.option("--device", help="The device's name, where the system's own won't do.")
def command(
    bundle: Path,
    *,
    engine: "EngineName",
    only: tuple[str, ...],
    rounds: int,
    warm: int,
    device: str | None,
) -> None:
    """Time the functions of the BUNDLE, chunk by chunk, as a `measured` block to paste."""
    from topoc.lowering.bundle.reader import open_bundle
    from topoc.lowering.engine.session import predictor_of
    from topoc.lowering.engine.stopwatch import measure

    opened = open_bundle(bundle)
    functions = _functions(opened.manifest, only, bundle)
    predictor = predictor_of(opened, engine, rounding=False)
    figures = tuple(measure(opened, predictor, functions, rounds=rounds, warm=warm))
    if engine == "coreml":
        lines = [*_head(device or _device()), *_figures(figures), "}"]
    else:
        lines = [f"# {line}" for line in (_no_device(), *_figures(figures))]
    view.result("\n".join(lines))
    view.progress(f"median of {rounds} calls, {warm} before them; the range is that of all")


def _functions(manifest: "Manifest", only: Sequence[str], bundle: Path) -> tuple["Function", ...]:
    """The functions to time; raises TopocError for a name that is none."""
    names = [one.name for one in manifest.functions]
    for name in only:
        if name not in names:
            message = f"`{manifest.name}` has no function `{name}`"
            help_ = f"name one of {', '.join(names)}"
            place = Place(str(bundle), "functions")
            raise TopocError(error("run.no-such-function", message, place, help=help_))
    return tuple(one for one in manifest.functions if not only or one.name in only)


def _head(device: str) -> Iterator[str]:
    """The first lines of a `measured` block."""
    system = f"macOS {platform.mac_ver()[0]}, coremltools {version('coremltools')}"
    yield f"measured on {datetime.now().astimezone().date().isoformat()} {{"
    yield f'  device "{_text(device)}"'
    yield f'  under  "{_text(system)}, topoc bench"'


def _device() -> str:
    """The model and chip of a Mac, as it calls itself."""
    words = [_sysctl("machdep.cpu.brand_string"), _sysctl("hw.model")]
    return ", ".join(word for word in words if word) or platform.machine()


def _sysctl(name: str) -> str:
    asked = ["/usr/sbin/sysctl", "-n", name]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603  # fixed words
    return done.stdout.strip()


def _text(words: str) -> str:
    """Words as they may stand between quotes."""
    return words.replace("\\", "\\\\").replace('"', '\\"')


def _no_device() -> str:
    return (
        f"no device: the interpreter on {platform.system()} {platform.machine()};"
        " these ms tell nothing of the Neural Engine"
    )


def _figures(figures: "Sequence[Figure]") -> Iterator[str]:
    """A line each; a whole call has the host's part, which is this program's own, with it."""
    for one in figures:
        chunk = f"{one.package.removesuffix('.mlpackage')} " if one.package else ""
        least, most = _ms(min(one.rounds)), _ms(max(one.rounds))
        yield f"  {chunk}{one.function} {_ms(one.ms)} ms  # {least} to {most}"


def _ms(value: float) -> str:
    """Three digits at least, without an exponent."""
    return f"{value:.2f}" if value >= 1 else f"{value:.4f}"
