"""The reference: Hugging Face transformers in fp32, eager attention, on the same checkpoint."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import define

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.checkpoint.weights import Weights

Logits = np.ndarray[Any, np.dtype[np.float32]]


@define
class Oracle:
    """A causal language model of transformers; Any, because transformers is untyped here."""

    model: Any

    @classmethod
    def of(cls, config: Path, weights: Weights) -> "Oracle":
        """The model of a config's folder, holding the values of these weights."""
        transformers = _transformers()
        text = transformers.AutoConfig.from_pretrained(config).get_text_config()
        text.tie_word_embeddings = weights.architecture.tied
        kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(text)]
        model, found = kind.from_pretrained(
            None,
            config=text,
            state_dict=_state(weights),
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
        lacking = {*found["missing_keys"], *found["unexpected_keys"], *found["mismatched_keys"]}
        if lacking:
            words = f"the reference and the checkpoint disagree on {sorted(lacking)[:3]}"
            raise TopocError(error("verify.reference", words, Place(str(config))))
        return cls(model.eval().requires_grad_(requires_grad=False))

    def logits(self, tokens: Sequence[int]) -> Logits:
        """The logits after each token, (T, V), from one pass without a cache."""
        found = self.model(torch.tensor([list(tokens)]), use_cache=False).logits
        values: Logits = found[0].float().numpy()
        return values

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The next tokens, each the one of the greatest logit."""
        told = list(tokens)
        for _ in range(count):
            told.append(int(self.logits(told)[-1].argmax()))
        return told[len(tokens) :]

    @contextmanager
    def embedding(self, rows: torch.Tensor) -> Iterator[None]:
        """With other rows behind the embedding, (V, H), before its multiplier; the head stays."""
        module = self.model.get_input_embeddings()
        multiplier = float(getattr(module, "embed_scale", 1.0))

        def looked_up(_: object, inputs: Any, __: object) -> torch.Tensor:
            return rows[inputs[0]].float() * multiplier

        hook = module.register_forward_hook(looked_up)
        try:
            yield
        finally:
            hook.remove()

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """With weights, gains, embeddings and angles rounded to fp16, as a package holds them."""
        kept = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        hooks = [
            module.register_forward_hook(_round_output)
            for name, module in self.model.named_modules()
            if name.endswith(("rotary_emb", "embed_tokens"))
        ]
        for name, parameter in self.model.named_parameters():
            offset = float(self._offset(name))
            parameter.copy_((parameter + offset).half().float() - offset)
        try:
            yield
        finally:
            self.model.load_state_dict(kept)
            for hook in hooks:
                hook.remove()

    def _offset(self, name: str) -> int:
        """One for gains that are stored without it."""
        norm = self.model.get_submodule(name.rpartition(".")[0])
        return int(type(norm).__name__.startswith("Gemma3RMSNorm"))


def _round_output(_: object, __: object, output: Any) -> Any:
    if isinstance(output, tuple):
        return tuple(one.half().float() for one in output)
    return output.half().float()


def _state(weights: Weights) -> dict[str, torch.Tensor]:
    """Every tensor by the name that transformers has for it."""
    return {
        spec.name if spec.role == "head" else f"model.{spec.name}": torch.cat(
            list(weights.blocks(spec.role))
        )
        for spec in weights.architecture.tensors
    }


def _transformers() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import transformers
    except ImportError as failure:
        words = "the reference needs transformers, which is not installed"
        way = "pip install 'topoc[oracle]'"
        raise TopocError(
            error("verify.no-oracle", words, Place("transformers"), help=way)
        ) from failure
    transformers.utils.logging.disable_progress_bar()
    return transformers
