"""The reference: Hugging Face transformers in fp32, eager attention, on the same checkpoint."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import define

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.architecture import TensorSpec
from topoc.lowering.checkpoint.weights import Weights

Logits = np.ndarray[Any, np.dtype[np.float32]]

Lookup = Callable[[torch.Tensor], torch.Tensor]
"""Token ids to rows of a table, before its multiplier."""

# The modules that look tokens up, by the name of the host table.
TABLES = {"embed": "embed_tokens", "ple_table": "embed_tokens_per_layer"}

WEIGHT = ".weight"

# The norms whose stored gain is one less than what they multiply by.
OFFSETS = {"Gemma3RMSNorm": 1.0}


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
        # All rows by their numbers: asked for as 0, Gemma 4 of transformers 5.24 cuts per-layer
        # inputs to that many rows, and fails where the model has none.
        rows = torch.arange(len(tokens))
        ids = torch.tensor([list(tokens)])
        found = self.model(ids, use_cache=False, logits_to_keep=rows).logits
        values: Logits = found[0].float().numpy()
        return values

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The next tokens, each the one of the greatest logit."""
        told = list(tokens)
        for _ in range(count):
            told.append(int(self.logits(told)[-1].argmax()))
        return told[len(tokens) :]

    @contextmanager
    def tables(self, rows: Mapping[str, Lookup]) -> Iterator[None]:
        """With other rows behind `embed` or `ple_table`; a head that is tied to one stays."""
        with ExitStack() as hooks:
            for name, lookup in rows.items():
                hook = self._module(TABLES[name]).register_forward_hook(_looking_up(lookup))
                hooks.callback(hook.remove)
            yield

    @contextmanager
    def holding(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """With other weights in projections, by the name of `state_name`; tied tables stay."""
        modules = {name: self.model.get_submodule(name[: -len(WEIGHT)]) for name in weights}
        kept = {name: module.weight for name, module in modules.items()}
        try:
            for name, module in modules.items():
                module.weight = torch.nn.Parameter(weights[name], requires_grad=False)
            yield
        finally:
            for name, module in modules.items():
                module.weight = kept[name]

    @contextmanager
    def quantising(self, scales: Mapping[str, float], *, whole: bool) -> Iterator[None]:
        """With inputs of projections through int8, by the names of weights.

        If not `whole` they are clipped there and not rounded.
        """
        with ExitStack() as hooks:
            for name, scale in scales.items():
                module = self.model.get_submodule(name[: -len(WEIGHT)])
                hook = module.register_forward_pre_hook(_through_int8(scale, whole=whole))
                hooks.callback(hook.remove)
            yield

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """With weights, gains, table rows and angles rounded to fp16, as a package holds them."""
        kept = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        hooks = [
            module.register_forward_hook(_round_output)
            for name, module in self.model.named_modules()
            if name.endswith(("rotary_emb", *TABLES.values()))
        ]
        for name, tensor in self.model.state_dict().items():
            offset = self._offset(name)
            tensor.copy_((tensor + offset).half().float() - offset)
        try:
            yield
        finally:
            self.model.load_state_dict(kept)
            for hook in hooks:
                hook.remove()

    def _module(self, ending: str) -> Any:
        """The one module of this name, wherever the model keeps it."""
        named = self.model.named_modules()
        (found,) = (one for name, one in named if name.rpartition(".")[2] == ending)
        return found

    def _offset(self, name: str) -> float:
        """What is added to a stored tensor where it is used."""
        module = self.model.get_submodule(name.rpartition(".")[0])
        return OFFSETS.get(type(module).__name__, 0.0)


def _looking_up(lookup: Lookup) -> Any:  # a hook of torch
    def looked_up(module: Any, inputs: Any, _: object) -> torch.Tensor:
        multiplier = float(getattr(module, "embed_scale", 1.0))
        return lookup(inputs[0]).float() * multiplier

    return looked_up


def _through_int8(scale: float, *, whole: bool) -> Any:  # a hook of torch
    def through(_: object, inputs: Any) -> Any:
        steps = inputs[0] / scale
        kept = (steps.round() if whole else steps).clamp(-128, 127)
        return (kept * scale, *inputs[1:])

    return through


def _round_output(_: object, __: object, output: Any) -> Any:
    if isinstance(output, tuple):
        return tuple(one.half().float() for one in output)
    return output.half().float()


def state_name(spec: TensorSpec, *, projects: bool = False) -> str:
    """What transformers calls a tensor; a tied table that projects is its head."""
    if spec.role == "head" or (projects and spec.role == "embed"):
        return "lm_head.weight"
    return f"model.{spec.name}"


def _state(weights: Weights) -> dict[str, torch.Tensor]:
    """Every tensor by the name that transformers has for it."""
    return {
        state_name(spec): torch.cat(list(weights.blocks(spec.role)))
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
