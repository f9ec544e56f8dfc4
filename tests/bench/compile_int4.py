"""Gemma 4 E2B at full size and four bits: cold, then other chunks from the cache, and the peer.

    python tests/bench/compile_int4.py [--smoke]

Three functions (decode, prefill of 64, verify of 3), `palettize(bits = 4, group = 32)`, random
weights. The peer is the k-means of coremltools' `palettize_weights`, on some rows of a matrix of
each shape that the model has: a group's time does not depend on how many there are, so it is
scaled by all weights of the shape, once for each function. Tracing and converting are left out,
in the peer's favour. Demands: cold 100 × faster than the peer, `merged2` from the cache 10 ×
faster than cold, 1.5 GB, weight files of at most 1.01 × their compressed weights. It needs 12 GB
of disk. `--smoke` compiles a tiny model both ways, and holds the peer against one small matrix.
"""

import json
import logging
import os
import sys
import tempfile
import warnings
from collections import Counter
from math import prod
from pathlib import Path
from time import process_time

import numpy as np
from compile_real import PEAK, measured

SEED = "random:0"
GROUP, BITS = 32, 4
LEAST = 512  # columns: groups of fewer weights need scikit-learn, which is much slower
FUNCTIONS = 3
COLD, WARM, FILE = 100.0, 10.0, 1.01
TEXT = """topology int4_{base} extends {base} {{
  functions decode, prefill(tokens = 64), verify(tokens = 3)
  quantize {{ weights: palettize(bits = 4, group = 32) }}
}}
"""
TINY = """topology tiny {
  model "config.json"
  context 64
  chunk one = L0-1 + norm + head(argmax)
  functions decode
  quantize { weights: palettize(bits = 4, group = 32) }
}
"""


def main() -> int:
    """Print what was measured; 1 where a demand is not met."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        if "--smoke" in sys.argv:
            return smoke(folder)
        files = {base: folder / f"int4_{base}.topo" for base in ("swa4", "merged2")}
        for base, file in files.items():
            file.write_text(TEXT.format(base=base))
        return bench(folder, files)


def smoke(folder):
    config = {"vocab_size": 160, "num_hidden_layers": 2}
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tiny_checkpoint import tiny

    tiny(folder, **config)
    (folder / "tiny.topo").write_text(TINY)
    for told in ("cold", "warm"):
        print(told, measured(folder / "tiny.topo", SEED, folder / "bundle"))
    print(f"the peer: {peer({(64, 64): 1}):.2f} s")
    return int(larger(folder / "bundle") < 1.0)


def bench(folder, files):
    cold, peak = measured(files["swa4"], SEED, folder / "bundle")
    size = larger(folder / "bundle")
    warm, again = measured(files["merged2"], SEED, folder / "bundle")
    theirs = FUNCTIONS * peer(shapes(files["swa4"]))
    print(f"cold {cold:.0f} s, peak {peak / 1e9:.2f} GB; weight files {size:.4f} × their weights")
    print(f"peer {theirs:.0f} s, {theirs / cold:.0f} × (demand {COLD:.0f})")
    print(f"warm {warm:.0f} s, cold is {cold / warm:.1f} × (demand {WARM:.0f})")
    kept = theirs >= COLD * cold and cold >= WARM * warm
    return int(not kept or max(peak, again) > PEAK or size > FILE)


def larger(bundle):
    """Weight files over the compressed weights in them."""
    told = json.loads((bundle / "manifest.json").read_text("utf-8"))["quantization"]
    files = sum(one.stat().st_size for one in bundle.rglob("weight.bin"))
    return files / sum(told["bytes"].values())


def shapes(file):
    """How many matrices of each shape the packages hold."""
    from topoc.dsl.load import load
    from topoc.lowering.architecture import read
    from topoc.lowering.plan import plan
    from topoc.lowering.recipes import matrices

    topology, findings = load(file)
    if topology is None:
        sys.exit(str(findings))
    laid = plan(topology, read(topology.layers.config))
    return Counter(one.type.shape for each in laid.packages for one in matrices(each.programs))


def peer(counted):
    """CPU seconds of coremltools for all matrices of these shapes."""
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from coremltools.optimize.coreml._quantization_passes import palettize_weights

        rng, whole = np.random.default_rng(0), 0.0
        for shape, count in counted.items():
            some = (min(2 * GROUP, shape[0]), max(shape[1], LEAST))
            values = (rng.standard_normal(some) * shape[1] ** -0.5).astype(np.float16)
            start = process_time()
            palettize_weights.grouped_channelwise_compress(values, "KMEANS", BITS, 0, GROUP)
            whole += (process_time() - start) * count * prod(shape) / prod(some)
    return whole


if __name__ == "__main__":
    sys.exit(main())
