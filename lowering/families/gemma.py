"""What the Gemma families have alike: four norms a layer, the tensors, their activation."""

from collections.abc import Iterable
from typing import Literal

from topoc.lowering.architecture import LayerSpec, TensorSpec
from topoc.lowering.families.config import Fields

Row = tuple[str, tuple[int, ...], str, str]
"""A tensor's role and shape, and its names in safetensors and GGUF without `.weight`."""


def activation(text: Fields) -> Literal["gelu_tanh"]:
    """The only one that they have."""
    name = text.text("hidden_activation", "gelu_pytorch_tanh")
    if name != "gelu_pytorch_tanh":
        found = f"activation `{name[:40]}` has no lowering in this family"
        text.refuse("hidden_activation", found, code="model.not-lowered")
    if text.values.get("hidden_act", name) != name:
        text.notices.append("`hidden_act` is passed over, and `hidden_activation` counts")
    return "gelu_tanh"


def softcap(text: Fields) -> float | None:
    """A cap of zero is off, like null."""
    name = "final_logit_softcapping"
    if text.values.get(name) in (0, None) and text.values.get(name) is not False:
        text.taken.add(name)
        return None
    return text.number(name, 1.0)


def weights(rows: Iterable[Row], *, gguf_offset: float) -> tuple[TensorSpec, ...]:
    """Specs of tensors called `.weight`; a GGUF stores the gains with `gguf_offset` added."""
    return tuple(
        TensorSpec(
            role=role,
            shape=shape,
            name=f"{name}.weight",
            gguf=f"{gguf}.weight",
            gguf_offset=gguf_offset if len(shape) == 1 else 0.0,
        )
        for role, shape, name, gguf in rows
    )


def tail(hidden: int, vocabulary: int, *, tied: bool) -> tuple[Row, ...]:
    """The final norm, and the head where it is no copy of the embedding."""
    norm: Row = ("norm", (hidden,), "norm", "output_norm")
    head: Row = ("head", (vocabulary, hidden), "lm_head", "output")
    return (norm,) if tied else (norm, head)


def layer_rows(index: int, rows: Iterable[Row]) -> tuple[Row, ...]:
    """Tensors of one layer, with its number before their names."""
    place, block = f"layers.{index}", f"blk.{index}"
    return tuple((f"{place}.{r}", s, f"{place}.{n}", f"{block}.{g}") for r, s, n, g in rows)


def decoder_layer(hidden: int, block: LayerSpec) -> tuple[Row, ...]:
    """A layer with four norms and normalised queries and keys; a sharer has no keys or values."""
    head, width = block.head_dim, block.mlp_width
    query, kv = block.heads * head, block.kv_heads * head
    rows: tuple[Row, ...] = (
        ("input_norm", (hidden,), "input_layernorm", "attn_norm"),
        ("q", (query, hidden), "self_attn.q_proj", "attn_q"),
        ("k", (kv, hidden), "self_attn.k_proj", "attn_k"),
        ("v", (kv, hidden), "self_attn.v_proj", "attn_v"),
        ("q_norm", (head,), "self_attn.q_norm", "attn_q_norm"),
        ("k_norm", (head,), "self_attn.k_norm", "attn_k_norm"),
        ("o", (hidden, query), "self_attn.o_proj", "attn_output"),
        ("post_attention_norm", (hidden,), "post_attention_layernorm", "post_attention_norm"),
        ("pre_mlp_norm", (hidden,), "pre_feedforward_layernorm", "ffn_norm"),
        ("gate", (width, hidden), "mlp.gate_proj", "ffn_gate"),
        ("up", (width, hidden), "mlp.up_proj", "ffn_up"),
        ("down", (hidden, width), "mlp.down_proj", "ffn_down"),
        ("post_mlp_norm", (hidden,), "post_feedforward_layernorm", "post_ffw_norm"),
    )
    own = block.donor is None
    return tuple(row for row in rows if own or row[0] not in {"k", "v", "k_norm"})
