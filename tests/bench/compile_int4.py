"""Gemma 4 E2B at full size and four bits: cold, then other chunks from the cache, and the peer.

    python tests/bench/compile_int4.py [--smoke]

Three functions (decode, prefill of 64, verify of 3), `palettize(bits = 4, group = 32)`, random
weights, one process. The peer is the usual path, a function at a time: trace, `ct.convert` and
`palettize_weights` (tests/usual_path.py), measured on one layer of each kind at full size and on
8,192 rows of the head. A kind's time counts for each of its layers, the head's for all its rows,
and all of it once for each function. Left out in the peer's favour: per-layer inputs, embed
tables, merging functions, writing files. Demands: cold 100 × faster than the peer, `merged2` from
the cache 10 × faster than cold, 1.5 GB, weight files of at most 1.01 × their compressed weights. It
needs 12 GB of disk and ten minutes. `--smoke` compiles a tiny model both ways, and holds the peer
against one small layer.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from compile_real import PEAK, measured

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_checkpoint import tiny
from usual_path import head_seconds, layer_seconds, weights_of

SEED = "random:0"
GROUP, BITS = 32, 4
LEAST = 320  # inputs: coremltools takes smaller groups to scikit-learn
SAMPLE = 8192  # rows of the head
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
    tiny(folder, **config)
    (folder / "tiny.topo").write_text(TINY)
    for told in ("cold", "warm"):
        print(told, measured(folder / "tiny.topo", SEED, folder / "bundle"))
    least = SimpleNamespace(
        heads=1, kv_heads=1, head_dim=LEAST, mlp_width=LEAST, donor=None, window=8
    )
    print(f"the peer: {layer_seconds(least, LEAST, 8, BITS, GROUP):.2f} s a layer")
    return int(larger(folder / "bundle") < 1.0)


def bench(folder, files):
    cold, peak = measured(files["swa4"], SEED, folder / "bundle")
    size = larger(folder / "bundle")
    warm, again = measured(files["merged2"], SEED, folder / "bundle")
    theirs = peer(files["swa4"])
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


def peer(file):
    """CPU seconds of the usual path to all functions of a topology."""
    from topoc.dsl.load import load
    from topoc.lowering.architecture import read

    topology, findings = load(file)
    if topology is None:
        sys.exit(str(findings))
    model, context, whole = read(topology.layers.config), topology.context, 0.0
    hidden = model.hidden
    kinds = {(one.kind, one.donor is None, one.mlp_width): one for one in model.layers}
    counted = Counter((one.kind, one.donor is None, one.mlp_width) for one in model.layers)
    for kind, spec in kinds.items():
        count = counted[kind]
        each = layer_seconds(spec, hidden, context, BITS, GROUP)
        owner = "owner" if spec.donor is None else "reader"
        size = weights_of(spec, hidden) / 1e6
        print(f"peer: {spec.kind} {owner}, {size:.1f} M weights: {each:.1f} s, {count} layers")
        whole += each * count
    head = head_seconds(hidden, model.vocabulary, SAMPLE, BITS, GROUP)
    print(f"peer: head: {head:.0f} s")
    return (whole + head) * len(topology.functions)


if __name__ == "__main__":
    sys.exit(main())
