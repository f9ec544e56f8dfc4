"""The figures of devices that ship, and what a fit of them may be held against."""

from functools import cache

from shipped import TOPOLOGIES

from topoc.dsl.load import Loader
from topoc.dsl.resolve import Given
from topoc.lowering.cost.fit import fit
from topoc.lowering.cost.picked import picked
from topoc.lowering.cost.rows import rows

FOLDER = TOPOLOGIES / "measured"
PHONE = "iPhone 17 Pro"
HELD_OUT = "e4b_swa4_padded"
FITTED = sorted(one for one in FOLDER.glob("*.topo") if one.stem != HELD_OUT)

FOURTEEN = FOLDER / "fourteen.rows"


@cache
def measured(*names):
    """The topologies of these files of the folder; of all that are fitted without a name."""
    loader = Loader(Given({}, None, None))
    paths = [FOLDER / f"{name}.topo" for name in names] or FITTED
    return tuple(loader.one(str(path), None).topology for path in paths)


@cache
def fitted():
    """The fit of every row but those that are held out."""
    return fit(rows(measured(), PHONE))


@cache
def held_out():
    """The rows of Gemma 4 E4B."""
    return rows(measured(HELD_OUT), PHONE).rows


def fourteen():
    """The rows of the first fit that was made of these figures."""
    return picked(rows(measured(), PHONE), FOURTEEN)
