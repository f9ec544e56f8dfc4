"""How long the light commands take on 35 layers, against importing the libraries they stand on.

    python tests/bench/startup.py [--rounds N] [--smoke]

Each round runs `python -c 'import click, attrs, lark'` and then every command, so that whatever
else the machine does falls on all alike; of `split`, which searches, only what it loads. All find
their bytecode in one folder, as after an installation, whatever the checkout and the environment
say of it. The medians' ratios are printed; one above the limit makes the exit status 1. `--smoke`
runs one round and only shows that everything runs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_config import deep

LIMIT = 3.0
LIBRARIES = [sys.executable, "-c", "import click, attrs, lark"]
TOPOC = [sys.executable, "-c", "from topoc.dsl.cli import main; main()"]
# What `split` loads before it searches; how long that takes is for split.py to tell.
_MODULES = (
    *("networkx", "topoc.dsl.cli", "topoc.dsl.load", "topoc.lowering.cli.split.gather"),
    *("topoc.lowering.cli.split.text", "topoc.lowering.split.known", "topoc.lowering.split.split"),
)
SPLIT = [*TOPOC[:2], f"import {', '.join(_MODULES)}"]
COMMANDS = {
    "lint": ["lint"],
    "plan": ["plan"],
    "fmt": ["fmt", "--check"],
    "show": ["show"],
    "diff": ["diff", "gemma3_270m"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--smoke", action="store_true", help="one round, no limit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        topology = written(Path(folder))
        calls = {name: [*TOPOC, *words, topology] for name, words in COMMANDS.items()}
        calls = {"libraries": LIBRARIES, **calls, "split": SPLIT}
        times = measured(calls, 1 if options.smoke else options.rounds, compiled(folder))
    sys.exit(told(times) and not options.smoke)


def written(folder):
    """A topology of 35 layers in canonical layout, as `topoc new` makes it."""
    config, path = deep(folder / "deep"), folder / "deep.topo"
    subprocess.run([*TOPOC, "new", "--from", config, "-o", path], check=True, capture_output=True)
    return str(path)


def compiled(folder):
    """An environment in which the first start of a module writes its bytecode into a folder."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(Path(folder) / "bytecode")}


def measured(calls, rounds, environment):
    """The seconds of every call in every round; one more round writes bytecode, warms the disk."""
    times = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            before = perf_counter()
            subprocess.run(call, check=True, capture_output=True, env=environment)
            times[name].append(perf_counter() - before)
    return {name: seconds[1:] for name, seconds in times.items()}


def told(times):
    """Print the ratios; whether one is above the limit."""
    libraries = median(times["libraries"])
    print(f"libraries {libraries * 1000:.0f} ms, median of {len(times['libraries'])}")
    over = False
    for name in (*COMMANDS, "split"):
        ratio = median(times[name]) / libraries
        over |= ratio > LIMIT
        verdict = "ok" if ratio <= LIMIT else f"above {LIMIT:g}"
        print(f"{name:<9} {median(times[name]) * 1000:.0f} ms, {ratio:.2f} × libraries: {verdict}")
    return over


if __name__ == "__main__":
    main()
