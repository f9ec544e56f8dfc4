"""The layouts that tests read: those that ship, and those that only tests hold."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
TOPOLOGIES, LAYOUTS = TESTS.parent / "topologies", TESTS / "layouts"
FILES = tuple(
    sorted((*TOPOLOGIES.glob("*.topo"), *LAYOUTS.glob("*.topo")), key=lambda one: one.stem)
)
# Those that somebody ships, each of which a status of its own says: no base hands its on.
SHIPPING = tuple(
    one.stem
    for one in sorted(TOPOLOGIES.rglob("*.topo"))
    if re.search(r"^  status +shipping\b", one.read_text("utf-8"), re.MULTILINE)
)


def layout(name):
    """The file of a layout."""
    (found,) = (one for one in FILES if one.stem == name)
    return found
