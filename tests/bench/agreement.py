"""Which shipped topologies of Gemma 4 agree: one tiny checkpoint, every layout compiled for it.

For each that sees what the checkpoint sees: whether its greedy text is transformers' own, and
whether its logits are bit for bit those of `swa4`, in the fp32 build and in the fp16 one with
every op rounded. The demand: the text of all, the bits of those that only cut elsewhere.
`--smoke` compiles two of them and writes eight tokens.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_gemma4 import E2B
from twins import SAME_ARITHMETIC, TOKENS, TWINS, Checkpoint, compiled, session

PROMPT, LENGTH = list(TOKENS[:8]), 40


def main() -> int:
    """Print a row a topology; 1 where a demand is not met."""
    torch.set_num_threads(1)
    smoke = "--smoke" in sys.argv
    length = 8 if smoke else LENGTH
    names = [
        one.name
        for one in TWINS.values()
        if one.keeps_attention and one.dimensions == tuple(E2B.items())
    ]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.make(Path(folder) / "checkpoint", **E2B)
        text = checkpoint.oracle.greedy(PROMPT, length)
        base = None
        print(f"{'topology':20}{'greedy text':>14}{'fp32 bits':>12}{'fp16 bits':>12}")
        for name in names[:2] if smoke else names:
            wide, narrow, greedy = measured(TWINS[name], checkpoint, Path(folder) / name, length)
            base = base or (wide, narrow)
            bits = [
                np.array_equal(mine, theirs)
                for mine, theirs in zip((wide, narrow), base, strict=True)
            ]
            words = ["equal" if one else "differ" for one in (greedy == text, *bits)]
            print(f"{name:20}{words[0]:>14}{words[1]:>12}{words[2]:>12}", flush=True)
            failed |= greedy != text or (name in SAME_ARITHMETIC and not all(bits))
    return int(failed)


def measured(twin, checkpoint, folder, length):
    """Logits of the fp32 build and of the rounded fp16 one, and the greedy text of the former."""
    bundles = {
        precision: compiled(
            twin, checkpoint.folder, folder / precision, precision, functions=("decode",)
        )
        for precision in ("fp32", "fp16")
    }
    tokens = TOKENS[:length]
    wide, narrow = (
        np.stack([engine.feed([token]).logits for token in tokens])
        for engine in (session(bundles["fp32"]), session(bundles["fp16"], rounding=True))
    )
    writer = session(bundles["fp32"])
    greedy = list(writer.generate(PROMPT, length, lambda one: int(one.logits.argmax()), set()))
    return wide, narrow, greedy


if __name__ == "__main__":
    sys.exit(main())
