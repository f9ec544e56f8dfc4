"""The `topoc` command: a table of commands, each imported only when it is called."""

import atexit
import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import current_thread, main_thread
from typing import Any

import click

from topoc.dsl.cli import view
from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error

# Command → where it lives, and what it does.
TABLE: dict[str, tuple[str, str]] = {
    "lint": ("topoc.dsl.cli.lint:command", "Check topologies; say what is wrong and why."),
    "fmt": ("topoc.dsl.cli.fmt:command", "Rewrite topologies in canonical layout."),
    "show": ("topoc.dsl.cli.show:command", "Print a topology with every default explicit."),
    "plan": ("topoc.lowering.cli.plan:command", "Show chunks, functions, bytes and inputs."),
    "split": ("topoc.lowering.cli.split:command", "Find the best ways to cut a model in chunks."),
    "diff": ("topoc.lowering.cli.diff:command", "Tell what differs between two topologies."),
    "compile": ("topoc.lowering.cli.compile:command", "Compile a topology to a bundle."),
    "run": ("topoc.lowering.cli.run:command", "Generate text with a bundle."),
    "verify": ("topoc.lowering.cli.verify:command", "Compare a bundle with its checkpoint."),
    "trace": ("topoc.lowering.cli.trace:command", "Write what each step of a bundle computes."),
    "bench": ("topoc.lowering.cli.bench:command", "Time the chunks and functions of a bundle."),
    "cache": ("topoc.lowering.cli.cache:command", "List or prune kept compressed weights."),
    "rules": ("topoc.dsl.cli.rules:command", "List the rules and the kinds of error."),
    "explain": ("topoc.dsl.cli.explain:command", "Explain the code of a finding."),
    "new": ("topoc.dsl.cli.new:command", "Write a first topology for a checkpoint."),
    "schema": ("topoc.lowering.cli.schema:command", "Print the JSON Schema of what topoc writes."),
}

# Over in less than a second: looking for garbage would take a tenth of it and find none.
BRIEF = frozenset(
    {"lint", "fmt", "show", "plan", "split", "diff", "rules", "explain", "new", "schema"}
)


class _Table(click.Group):
    """A group that imports a command when it is called, and renders what stops it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 — click's signature
        """The commands in the order of the table."""
        return list(TABLE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command."""
        if cmd_name not in TABLE:
            return None
        if cmd_name in BRIEF:
            gc.disable()
            _spare_the_last_search()
        return _imported(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in TABLE.items()])

    def invoke(self, ctx: click.Context) -> Any:  # a command's own result
        """Run a command; what it could not do is shown, and its exit status is 2."""
        try:
            with _ended_like_ctrl_c():
                return super().invoke(ctx)
        except TopocError as failure:
            view.problems(failure.findings)
            ctx.exit(view.COULD_NOT_RUN)
        except BrokenPipeError:
            raise  # click ends quietly where nobody reads on
        except OSError as refusal:
            view.problems((_refused(refusal),))
            ctx.exit(view.COULD_NOT_RUN)
        except KeyboardInterrupt:
            view.progress("interrupted; what stood before still stands")
            ctx.exit(view.COULD_NOT_RUN)
        finally:
            gc.enable()


@cache
def _spare_the_last_search() -> None:
    """The interpreter looks for garbage once more when it ends; let it find nothing to look at."""
    atexit.register(gc.freeze)


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM too lets a command clear away what it has half written, unless it is dealt with."""
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL or current_thread() is not main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _refused(refusal: OSError) -> Diagnostic:
    """What the system would not do, with the file that it was about."""
    file = refusal.filename or "the output"
    reason = (refusal.strerror or str(refusal)).lower()
    place = Place(str(file))
    way = "see that it may be read and written, or name another"
    return error("system.refused", f"`{file}`: {reason}", place, help=way)


def _imported(name: str) -> click.Command:
    module, _, attribute = TABLE[name][0].partition(":")
    try:
        command = getattr(import_module(module), attribute)
    except ModuleNotFoundError as missing:
        if missing.name is None or not module.startswith(missing.name):
            raise
        message = f"`topoc {name}` is not part of this installation"
        raise TopocError(error("name.unknown", message, Place("topoc"))) from missing
    if not isinstance(command, click.Command):
        message = f"{TABLE[name][0]} is no command"
        raise TypeError(message)
    return command


@click.group(cls=_Table, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="topoc", message="topoc %(version)s")
def main() -> None:
    """Compile decoder language models for the Apple Neural Engine, as `.topo` files say."""
    view.tolerate()
