"""The figures of devices that ship, and what a fit of them may be held against."""

from functools import cache

from shipped import TOPOLOGIES

from topoc.dsl.load import Loader
from topoc.dsl.resolve import Given
from topoc.lowering.cost.fit import fit
from topoc.lowering.cost.rows import rows

FOLDER = TOPOLOGIES / "measured"
PHONE = "iPhone 17 Pro"
HELD_OUT = "e4b_swa4_padded"
FITTED = sorted(one for one in FOLDER.glob("*.topo") if one.stem != HELD_OUT)

# One row a different chunk program, and the three that were measured in another build: the rows of
# the first fit that was made of these figures.
FOURTEEN = {
    ("swa4_padded", "2026-04-24"): "chunk1 chunk2 chunk3 chunk4",
    ("swa4_8k_padded", "2026-04-13"): "chunk1 chunk2 chunk3 chunk4",
    ("threeway_padded", "2026-04-24"): "chunk2_3way:12.2 chunk3_3way",
    ("topology_i_padded", "2026-04-24"): "chunk1 chunk2",
    ("merged2_padded", "2026-04-17"): "chunk12 chunk34",
}


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
    """The fourteen rows, as rows without whole calls."""
    found = rows(measured(), PHONE)
    kept = []
    for (topology, date), chunks in FOURTEEN.items():
        for said in chunks.split():
            name, _, ms = said.partition(":")
            alike = [
                one
                for one in found.rows
                if (one.topology, one.date, one.chunk) == (topology, date, name)
                and (not ms or one.ms == float(ms))
            ]
            kept.append(alike[0])
    return kept
