"""The layouts that tests read: those that ship, and those that only tests hold."""

from pathlib import Path

TESTS = Path(__file__).parent
TOPOLOGIES, LAYOUTS = TESTS.parent / "topologies", TESTS / "layouts"
FILES = tuple(
    sorted((*TOPOLOGIES.glob("*.topo"), *LAYOUTS.glob("*.topo")), key=lambda one: one.stem)
)


def layout(name):
    """The file of a layout."""
    (found,) = (one for one in FILES if one.stem == name)
    return found
