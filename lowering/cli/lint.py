"""What `topoc lint` says of a bundle; `dsl` calls it by its dotted name."""

from pathlib import Path

from topoc.dsl.diagnostic import Diagnostic
from topoc.lowering.bundle.reader import examine

TEXT = "topology.topo"
ASTRAY = frozenset({"bundle.path", "bundle.unreadable-file"})


def of_bundle(path: str) -> tuple[tuple[Diagnostic, ...], str | None]:
    """Everything that is wrong with a bundle, and its topology, if that may be read."""
    bundle, findings = examine(Path(path))
    text = Path(path) / TEXT
    if bundle is None or not text.is_file() or any(one.code in ASTRAY for one in findings):
        return findings, None
    return findings, str(text)
