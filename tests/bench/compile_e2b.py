"""Compiling Gemma 4 E2B at full size, every chunk at fp16, from random weights: peak memory.

The demand is 1.5 GB at the peak, for `swa4` and for `merged2`; seconds are told beside the time
that it takes to draw the same weights and do nothing with them. It needs 12 GB of disk.
`--smoke` compiles the smallest chunk of a tiny model only.
"""

import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from compile_real import PEAK, measured

TOPOLOGIES = ("swa4", "merged2")
SEED = "random:0"
ROOT = Path(__file__).parents[2]


def main() -> int:
    """Print a line a topology; 1 where the demand is not met."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        if "--smoke" in sys.argv:
            example = ROOT / "examples" / "conformance" / "tiny.topo"
            print(measured(example, SEED, Path(folder) / "bundle"))
            return 0
        return bench(Path(folder))


def bench(folder):
    """One compile a topology: it is memory that is measured, and minutes that it takes."""
    start, failed = perf_counter(), False
    drawn = draw()
    drawing = perf_counter() - start
    for topology in TOPOLOGIES:
        seconds, peak = measured(whole(topology, folder), SEED, folder / "bundle")
        size = sum(one.stat().st_size for one in (folder / "bundle").rglob("*") if one.is_file())
        print(
            f"{topology}: {size / 1e9:.1f} GB in {seconds:.0f} s, {seconds / drawing:.1f} × the"
            f" {drawing:.0f} s for drawing {drawn / 1e9:.1f} G weights once; peak"
            f" {peak / 1e9:.2f} GB (demand {PEAK / 1e9})"
        )
        failed |= peak > PEAK
    return int(failed)


def whole(name, folder):
    """The layout with its weights as they are, whatever it says of compression."""
    text = f"topology whole_{name} extends {name} {{\n  quantize {{ weights: none }}\n}}\n"
    path = folder / f"whole_{name}.topo"
    path.write_text(text)
    return path


def draw():
    """Read every weight once, and tell how many."""
    from topoc.lowering.architecture import read
    from topoc.lowering.checkpoint.bind import bind
    from topoc.lowering.checkpoint.open import open_checkpoint

    config = ROOT / "topologies" / "models" / "gemma4-e2b.json"
    weights = bind(open_checkpoint(SEED), read(config))
    return sum(
        block.numel()
        for spec in weights.architecture.tensors
        for block in weights.blocks(spec.role)
    )


if __name__ == "__main__":
    sys.exit(main())
