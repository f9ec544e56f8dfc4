"""How long the exact search takes on 48 layers, 1 to 8 chunks, the best ten by each objective.

    python tests/bench/split.py [--rounds N] [--smoke]

Each round imports the libraries that topoc stands on in a new process
(`python -c 'import click, attrs, lark'`, about 0.35 s on an idle machine) and then runs the
searches, so that whatever else the machine does falls on all alike. The ratios of medians are
printed; one above the limit, which stands for a second, makes the exit status 1. The number of
splits says what going through all of them would be. `--smoke` runs one round and only shows that
everything runs.
"""

import argparse
import subprocess
import sys
from math import comb
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from attrs import evolve
from layer_tables import gemma4_e4b
from topo_text import resolved

from topoc.lowering.cost.profile import shipped
from topoc.lowering.split.search import OBJECTIVES
from topoc.lowering.split.split import best, pareto, prepare

LIMIT = 3.0
LAYERS, CHUNKS, TOP = 48, 8, 10
LIBRARIES = [sys.executable, "-c", "import click, attrs, lark"]
TEXT = """topology deep {
  model "deep.json"
  target ane ios18 a19
  context 2048
  kv {
    sliding: write shift
    full:    write blend
  }
  chunk whole = ple + L0-47 + norm + head(argmax)
  functions decode
  quantize { weights: palettize(bits = 4, group = 32) }
  expect { layers per chunk <= 24 }
}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--smoke", action="store_true", help="one round, no limit")
    options = parser.parse_args()
    times = measured(topology(), 1 if options.smoke else options.rounds)
    splits = sum(comb(LAYERS - 1, chunks - 1) for chunks in range(1, CHUNKS + 1))
    print(f"{LAYERS} layers, 1 to {CHUNKS} chunks: {splits:,} splits")
    sys.exit(told(times) and not options.smoke)


def topology():
    """A model like Gemma 4 E4B with six layers more, half of which read the KV of others."""
    table = gemma4_e4b()
    longer = evolve(table, layers=(*table.layers, *table.layers[-6:]))
    found, findings = resolved(TEXT, layers=lambda _: longer)
    assert found is not None, findings
    return found


def measured(found, rounds):
    """The seconds of the import and of every search, in every round; one more warms up."""
    profile = shipped("a19")
    calls = {name: (lambda name=name: search(found, profile, name)) for name in OBJECTIVES}
    calls["time,memory"] = lambda: pareto(prepare(found, profile, 1, CHUNKS), "time", "memory")
    calls = {"libraries": lambda: subprocess.run(LIBRARIES, check=True), **calls}
    times = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            before = perf_counter()
            call()
            times[name].append(perf_counter() - before)
    return {name: seconds[1:] for name, seconds in times.items()}


def search(found, profile, objective):
    """The best ten; all of them, or something is wrong."""
    choices = best(prepare(found, profile, 1, CHUNKS), objective, TOP).choices
    assert len(choices) == TOP


def told(times):
    """Print the ratios; whether that of a search for the best ten is above the limit."""
    libraries = median(times["libraries"])
    print(f"libraries    {libraries * 1000:.0f} ms, median of {len(times['libraries'])}")
    over = False
    for name in [one for one in times if one != "libraries"]:
        ratio = median(times[name]) / libraries
        line = f"{name:<12} {median(times[name]) * 1000:.0f} ms, {ratio:.2f} × libraries"
        if name in OBJECTIVES:
            over |= ratio > LIMIT
            line += f": {'ok' if ratio <= LIMIT else f'above {LIMIT:g}'}"
        print(line)
    return over


if __name__ == "__main__":
    main()
