"""Bundles of tiny checkpoints for the runtime of CoreML-LLM, each compiled once."""

from pathlib import Path

from tiny_gemma4 import E2B, E4B
from twins import WHOLE, Checkpoint, with_weights

from topoc.dsl.load import load
from topoc.lowering.architecture import read
from topoc.lowering.bundle.reader import Bundle, open_bundle
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compiler import compile_bundle
from topoc.lowering.ir import DType
from topoc.lowering.request import Request

CONTEXT, K = 64, 3
ROTARY = (16, 32)  # of the tiny models, where the runtime has 256 and 512
TEXTS = {
    "A": "topology four extends swa4 {\n  features coreml_llm\n}\n",
    "C": (Path(__file__).parents[1] / "topologies" / "threeway_coreml_llm.topo").read_text(),
    "E4B": "topology e4b extends e4b_swa4 {\n  features coreml_llm\n}\n",
}


def give_tokenizer(folder):
    """Words for ids, and what else stands beside published weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{at}": at for at in range(131)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w3"))  # noqa: S106 — a word
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "w2"}')
    (folder / "chat_template.jinja").write_text("{{ bos_token }} {{ messages[0].content }} w9")
    (folder / "generation_config.json").write_text('{"top_k": 64}')


class Made:
    """Checkpoints and bundles, each made once."""

    def __init__(self, folder):
        self.folder, self.checkpoints, self.bundles = folder, {}, {}

    def checkpoint(self, layout="A"):
        name, dimensions = ("e4b", E4B) if layout == "E4B" else ("e2b", E2B)
        if name not in self.checkpoints:
            self.checkpoints[name] = Checkpoint.make(self.folder / name, **dimensions)
            give_tokenizer(self.folder / name)
        return self.checkpoints[name]

    def bundle(self, layout, precision="fp16") -> Bundle:
        if (layout, precision) not in self.bundles:
            checkpoint = self.checkpoint(layout).folder
            target = self.folder / f"{layout}.{precision}"
            compile_bundle(self.request(TEXTS[layout], checkpoint, precision), target)
            self.bundles[layout, precision] = open_bundle(target)
        return self.bundles[layout, precision]

    def request(self, text, checkpoint, precision="fp16"):
        file = self.folder / "t.topo"
        file.write_text(text)
        given = {"define": {"C": float(CONTEXT)}, "model": checkpoint / "config.json"}
        topology, findings = load(file, **given)
        assert topology is not None, findings
        return Request(
            topology=with_weights(topology, WHOLE),
            architecture=read(checkpoint),
            reader=open_checkpoint(str(checkpoint)),
            precision=DType(precision),
        )
