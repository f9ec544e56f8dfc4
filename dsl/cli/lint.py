"""`topoc lint`: check topologies, packages, and bundles that were compiled from some."""

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from attrs import define, evolve, field, frozen

from topoc.dsl.cli import aim, closing, options, view
from topoc.dsl.diagnostic import Diagnostic, Severity, TopocError
from topoc.dsl.lint.engine import Options, Report, Subjects, examine, worst
from topoc.dsl.load import Loader, Look
from topoc.dsl.model import Topology
from topoc.dsl.render import count
from topoc.dsl.resolve import Given

_MANIFEST = "manifest.json"  # what a folder has that is a bundle
_PACKAGES = (".mlpackage", ".mlmodelc", ".mlmodel")
_COMPILER = "topoc.lowering.cli.lint"


@frozen(kw_only=True)
class Asked:
    """The command line: one field an option."""

    files: tuple[str, ...]
    style: str
    fail_on: str
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    target: Any  # a Target, once click has read it
    mil: bool
    ops: bool
    plan: Path | None
    ranges: bool
    prompt: str | None
    prompt_ids: str | None
    define: tuple[tuple[str, float], ...]
    model: Path | None

    @property
    def lists(self) -> bool:
        """Whether operations are listed."""
        return self.ops or self.plan is not None

    @property
    def options(self) -> Options:
        """Which rules run, and for which target."""
        return Options(select=self.select, ignore=self.ignore, target=self.target)


@click.command("lint")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="How to write the findings.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["note", "warning", "error"]),
    default="error",
    show_default=True,
    help="The mildest finding that makes the exit status 1.",
)
@aim.select
@aim.ignore
@aim.target
@click.option("--mil", is_flag=True, help="Build the programs and run the rules on them too.")
@click.option("--ops", is_flag=True, help="List the operations of packages, and where they run.")
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    metavar="PLAN.json",
    help="Compare the operations with a compute plan from a device.",
)
@click.option("--ranges", is_flag=True, help="Interpret bundles, and tell what leaves fp16.")
@click.option("--prompt", help="The prompt of --ranges; by default a sentence behind BOS.")
@click.option("--prompt-ids", help="The prompt of --ranges as token ids: 2,651,9.")
@options.define
@options.model
def command(**given: Any) -> None:  # as `Asked` names and types them
    """Check each FILE: topologies, Core ML packages, bundles; `-` reads standard input."""
    asked = Asked(**given)
    _check(asked)
    run = _Run(asked)
    run.all()
    raise SystemExit(run.status())


def _check(asked: Asked) -> None:
    """Refuse options that would say nothing of what they are given with."""
    if asked.lists and asked.style != "text":
        message = "--ops and --plan list operations for people; leave out --format"
        raise click.UsageError(message)
    if not asked.ranges and (asked.prompt is not None or asked.prompt_ids is not None):
        message = "a prompt is interpreted by --ranges alone; add it"
        raise click.UsageError(message)
    others = [one for one in asked.files if asked.ranges and not _is_bundle(one)]
    if others:
        message = f"--ranges interprets bundles, and {others[0]!r} is none"
        raise click.UsageError(message)


@define
class _Run:
    """One call of the command, and what it has found so far."""

    asked: Asked
    findings: list[Diagnostic] = field(factory=list)
    unread: list[Diagnostic] = field(factory=list)
    reports: list[Report] = field(factory=list)
    topologies: list[Topology] = field(factory=list)
    listed: list[str] = field(factory=list)  # operations of programs and of packages

    def all(self) -> None:
        """Look at every file, and tell what was found."""
        if self.asked.plan is not None:
            _compiler().check_plan(self.asked.plan)
        loader = Loader(self._given(), look=self._look())
        for file in self.asked.files:
            try:
                found = list(self._one(loader, file))
            except TopocError as failure:
                self.unread += failure.findings
            else:
                self.findings = list(dict.fromkeys([*self.findings, *found]))
        self._tell()

    def _given(self) -> Given:
        return Given(dict(self.asked.define), self.asked.model, None)

    def _look(self) -> Look:
        asked = self.asked.options

        def texts(subjects: Subjects) -> Report:
            return examine(subjects, asked)

        def programs(subjects: Subjects) -> Report:
            return _with_programs(subjects, texts(subjects), asked)

        return programs if self.asked.mil else texts

    def _one(self, loader: Loader, file: str) -> Iterator[Diagnostic]:
        if _is_bundle(file):
            yield from self._bundle(file)
        elif _holds_packages(file):
            report = _compiler().of_package(file, self.asked.options)
            self.reports.append(report)
            yield from report.findings
        else:
            before = len(self.topologies)
            found = list(self._texts(loader, file))
            yield from found
            if self.asked.lists:
                self.listed += self._programs(file, found, self.topologies[before:])
            return
        if self.asked.lists:
            self.listed += _compiler().ops_of(file, self.asked.plan)

    def _programs(
        self, file: str, found: list[Diagnostic], topologies: list[Topology]
    ) -> Iterator[str]:
        """The operations of the programs that a file's topologies become."""
        if worst(found) is Severity.ERROR:
            yield f"{file}: its operations are not listed, since the text has errors"
            return
        for topology in topologies:
            try:
                yield from _compiler().ops_of_programs(topology, self.asked.plan)
            except TopocError as refused:
                yield f"{topology.name}: its operations are not listed, since {_said(refused)}"

    def _texts(self, loader: Loader, file: str) -> Iterator[Diagnostic]:
        for loaded in loader.all(file):
            yield from loaded.findings
            if loaded.topology is not None and loaded.report is not None:
                self.topologies.append(loaded.topology)
                self.reports.append(loaded.report)

    def _bundle(self, folder: str) -> Iterator[Diagnostic]:
        """What is wrong with a bundle, and as notes what its own topology is warned of.

        The bundle stands, whatever was found in the text that it was compiled from.
        """
        findings, text = _compiler().of_bundle(folder)
        yield from findings
        if text is not None:
            loader = Loader(Given({}, None, None), look=self._look())
            for one in self._texts(loader, text):
                if one.severity > Severity.NOTE:
                    yield evolve(one, severity=Severity.NOTE)
        report = _compiler().packages_of_bundle(folder, self.asked.options)
        self.reports.append(report)
        yield from report.findings
        if self.asked.ranges:
            yield from _compiler().of_ranges(folder, self.asked.prompt, self.asked.prompt_ids)

    def _tell(self) -> None:
        view.report((*self.unread, *self.findings), self.asked.style)
        if self.listed:
            view.result("\n\n".join(self.listed))
        if self.asked.style == "text":
            many = len(self.asked.files)
            files = f"{many} file{'s' * (many > 1)}"
            view.result(f"{files}: {count((*self.unread, *self.findings))}")
            for line in closing.lines(self.reports, self.topologies, self.asked.options):
                view.result(line)

    def status(self) -> int:
        """The exit status."""
        if self.unread:
            return view.COULD_NOT_RUN
        fail_on = Severity(self.asked.fail_on)
        failing = any(finding.severity >= fail_on for finding in self.findings)
        return view.FINDINGS if failing else view.CLEAN


def _with_programs(subjects: Subjects, texts: Report, asked: Options) -> Report:
    """The report on a topology and its programs, or why they can't be built."""
    if any(one.severity is Severity.ERROR for one in texts.findings):
        return closing.lacking(texts, "mil", "programs, and the text has errors")
    try:
        found: Report = _compiler().of_programs(subjects.topology, asked)
    except TopocError as failure:
        return closing.lacking(texts, "mil", f"programs, and {_said(failure)}")
    return evolve(found, findings=tuple(dict.fromkeys((*texts.findings, *found.findings))))


def _said(failure: TopocError) -> str:
    return failure.findings[0].message


def _compiler() -> Any:  # a module that the language knows by name only
    return import_module(_COMPILER)


def _is_bundle(file: str) -> bool:
    return os.path.isfile(os.path.join(file, _MANIFEST))  # noqa: PTH113, PTH118 — any text will do


def _holds_packages(file: str) -> bool:
    """Whether a path is a package, or a folder that has some and is no bundle."""
    path = Path(file)
    if path.suffix in _PACKAGES:
        return True
    try:
        return path.is_dir() and any(one.suffix in _PACKAGES for one in path.iterdir())
    except OSError:
        return False
