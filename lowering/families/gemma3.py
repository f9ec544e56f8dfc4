"""Gemma 3: five sliding layers to one full, four norms a layer, q and k normalised."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from attrs import evolve

from topoc.dsl.diagnostic import TopocError
from topoc.dsl.model import Kind
from topoc.lowering.architecture import Architecture, LayerSpec, Norms, Rope, TensorSpec
from topoc.lowering.families.config import Fields
from topoc.lowering.families.known import HARMLESS, OFF
from topoc.lowering.families.rotary import Spelling, rotary
from topoc.lowering.jsonfile import load, named

MOST_LAYERS = 4096

KINDS = {
    "sliding_attention": Kind.SLIDING,
    "full_attention": Kind.FULL,
    "attention": Kind.FULL,
}

NORMS = Norms(eps=1e-6, offset=1.0, post_attention=True, post_mlp=True, query_key=True)

# How a config spells the rotary embedding of each kind.
SPELLINGS = {
    Kind.SLIDING: Spelling("sliding_attention", "rope_local_base_freq", None, 10_000.0),
    Kind.FULL: Spelling("full_attention", "rope_theta", "rope_scaling", 1_000_000.0),
}

# What these ask for has no lowering; None and the values here ask for nothing.
NEUTRAL: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("attention_bias", (False,)),
    ("attn_logit_softcapping", ()),  # transformers takes the field and does not apply it
    ("enable_moe_block", (False,)),
    ("mlp_bias", (False,)),
    ("moe_intermediate_size", (0,)),
    ("n_routed_experts", (0,)),
    ("num_experts", (0,)),
    ("num_experts_per_tok", (0,)),
    ("num_kv_shared_layers", (0,)),
    ("num_local_experts", (0,)),
    ("partial_rotary_factor", (1,)),
    ("quantization", ()),
    ("quantization_config", ()),
    ("use_bidirectional_attention", (False,)),
)


def read(config: Mapping[str, object], file: Path) -> Architecture:
    """A text model on its own."""
    fields = Fields(file, config)
    return _read(fields, fields)


def read_nested(config: Mapping[str, object], file: Path) -> Architecture:
    """The text model inside an image-and-text one; tying is what the outer object says."""
    outer = Fields(file, config)
    text = outer.within("text_config")
    if not outer.has("text_config"):
        outer.refuse("text_config", "the config holds no `text_config`")
    if text.values.get("model_type", "gemma3_text") != "gemma3_text":
        found = "the model type of `text_config` is not `gemma3_text`"
        text.refuse("model_type", found, code="model.not-lowered")
    return _read(outer, text)


def _read(outer: Fields, text: Fields) -> Architecture:
    hidden = text.count("hidden_size", 2304)
    tied = outer.flag("tie_word_embeddings", default=True)
    vocabulary = text.count("vocab_size", 262_208)
    blocks = _blocks(text)
    found = Architecture(
        family="gemma3",
        config=outer.file,
        hidden=hidden,
        vocabulary=vocabulary,
        positions=text.count("max_position_embeddings", 131_072),
        layers=blocks,
        ropes=_ropes(text, blocks),
        norms=evolve(NORMS, eps=text.number("rms_norm_eps", NORMS.eps)),
        activation=_activation(text),
        attention_scale=text.number("query_pre_attn_scalar", 256) ** -0.5,
        embed_multiplier=hidden**0.5,
        final_softcap=_softcap(text),
        tied=tied,
        bos=_ids(outer, text, "bos_token_id", (2,)),
        eos=tuple(dict.fromkeys((*_ids(outer, text, "eos_token_id", (1,)), *_generation(outer)))),
        tensors=_tensors(hidden, vocabulary, blocks, tied=tied),
    )
    _finish(outer, text)
    return evolve(found, notices=tuple(outer.notices))


def _finish(outer: Fields, text: Fields) -> None:
    """Refuse what is not lowered and not known, and stop if anything at all was found."""
    if outer is not text:
        _agree(outer, text)
    for fields in (outer,) if outer is text else (outer, text):
        fields.neutral(NEUTRAL + OFF)
        fields.finish(HARMLESS)
    if outer.findings:
        raise TopocError(*outer.findings)


def _agree(outer: Fields, text: Fields) -> None:
    """The outer object may repeat a field of the text model, and not contradict it."""
    apart = {"tie_word_embeddings", "bos_token_id", "eos_token_id", "text_config"}
    for name in sorted((outer.values.keys() & text.taken) - apart):
        outer.taken.add(name)
        if outer.values[name] != text.values.get(name):
            found = f"`{name}` is {named(outer.values[name])} here and not so in `text_config`"
            outer.refuse(name, found, code="model.contradictory", way="keep the one that holds")
    text.taken.add("tie_word_embeddings")
    if text.values.get("tie_word_embeddings", outer.values.get("tie_word_embeddings")) != (
        outer.values.get("tie_word_embeddings")
    ):
        outer.notices.append("`tie_word_embeddings` of `text_config` is passed over")


def _blocks(text: Fields) -> tuple[LayerSpec, ...]:
    heads = text.count("num_attention_heads", 8)
    kv_heads = text.count("num_key_value_heads", 4)
    head_dim = text.count("head_dim", 256)
    if heads % kv_heads:
        found = f"{heads} query heads do not share {kv_heads} key and value heads evenly"
        text.refuse("num_key_value_heads", found)
    if head_dim % 2:
        found = f"head_dim {head_dim} is odd and the rotary embedding turns pairs"
        text.refuse("head_dim", found)
    width = text.count("intermediate_size", 9216)
    kinds = _kinds(text, text.count("num_hidden_layers", 26, most=MOST_LAYERS))
    window = _window(text, kinds)
    return tuple(
        LayerSpec(
            kind=kind,
            window=window if kind is Kind.SLIDING else None,
            donor=None,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            mlp_width=width,
            rope=kind.value,
        )
        for kind in kinds
    )


def _kinds(text: Fields, count: int) -> tuple[Kind, ...]:
    """The explicit list, or every sixth layer full (`sliding_window_pattern` gives the number)."""
    text.taken |= {"layer_types", "sliding_window_pattern"}
    names = text.values.get("layer_types")
    if names is None:
        period = _period(text)
        return tuple(Kind.SLIDING if (i + 1) % period else Kind.FULL for i in range(count))
    if not isinstance(names, list):
        text.refuse("layer_types", f"`layer_types` is {named(names)} and not a list")
        return (Kind.FULL,) * count
    if len(names) != count:
        found = f"`layer_types` names {len(names)} layers and `num_hidden_layers` is {count}"
        text.refuse("layer_types", found)
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in KINDS:
            found = f"layer {index}: {named(name)} has no lowering"
            text.refuse("layer_types", found, code="model.not-lowered")
    return tuple(KINDS.get(str(name), Kind.FULL) for name in names)


def _period(text: Fields) -> int:
    """How often a full layer comes; the private spelling only confirms the public one."""
    period = text.count("sliding_window_pattern", 6)
    private = text.values.get("_sliding_window_pattern", period)
    if private != period:
        found = (
            f"`_sliding_window_pattern` is {named(private)}, and {period} is what transformers uses"
        )
        way = "say `layer_types`"
        text.refuse("_sliding_window_pattern", found, code="model.contradictory", way=way)
    return period


def _window(text: Fields, kinds: tuple[Kind, ...]) -> int | None:
    if text.values.get("sliding_window", 0) is not None:
        return text.count("sliding_window", 4096)
    text.taken.add("sliding_window")
    if Kind.SLIDING in kinds:
        found = f"`sliding_window` is null and layer {kinds.index(Kind.SLIDING)} is sliding"
        text.refuse("sliding_window", found)
    return None


def _ropes(text: Fields, blocks: tuple[LayerSpec, ...]) -> tuple[tuple[str, Rope], ...]:
    parameters = text.within("rope_parameters")
    used = {block.kind for block in blocks}
    ropes = []
    for kind, spelling in SPELLINGS.items():
        theta, factor = rotary(text, parameters, spelling)
        if kind in used:
            ropes.append((kind.value, Rope(theta=theta, width=blocks[0].head_dim, factor=factor)))
    parameters.finish(frozenset())
    return tuple(ropes)


def _activation(text: Fields) -> Literal["gelu_tanh"]:
    name = text.text("hidden_activation", "gelu_pytorch_tanh")
    if name != "gelu_pytorch_tanh":
        found = f"activation `{name[:40]}` has no lowering in this family"
        text.refuse("hidden_activation", found, code="model.not-lowered")
    if text.values.get("hidden_act", name) != name:
        text.notices.append("`hidden_act` is passed over, and `hidden_activation` counts")
    return "gelu_tanh"


def _softcap(text: Fields) -> float | None:
    """A cap of zero is off, like null."""
    name = "final_logit_softcapping"
    if text.values.get(name) in (0, None) and text.values.get(name) is not False:
        text.taken.add(name)
        return None
    return text.number(name, 1.0)


def _ids(outer: Fields, text: Fields, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Token ids that either object gives."""
    given = [fields for fields in (outer, text) if name in fields.values] or [text]
    outer.taken.add(name)
    found = [one for fields in given for one in fields.ids(name, default)]
    rows = text.values.get("vocab_size")
    beyond = [one for one in found if isinstance(rows, int) and one >= rows]
    if beyond:
        outer.refuse(name, f"token {beyond[0]} is beyond the vocabulary of {rows}")
    return tuple(dict.fromkeys(found))


def _generation(outer: Fields) -> tuple[int, ...]:
    """The stop tokens that `generation_config.json` adds to a `config.json`."""
    file = outer.file.with_name("generation_config.json")
    if outer.file.name != "config.json" or not file.exists():
        return ()
    beside = Fields(file, load(file), "", outer.findings)
    return beside.ids("eos_token_id", ())


def _tensors(
    hidden: int, vocabulary: int, blocks: tuple[LayerSpec, ...], *, tied: bool
) -> tuple[TensorSpec, ...]:
    table = (vocabulary, hidden)
    embed = _spec("embed", table, "embed_tokens", "token_embd")
    norm = _spec("norm", (hidden,), "norm", "output_norm")
    head = _spec("head", table, "lm_head", "output")
    layers = [_layer_tensors(hidden, block) for block in blocks]
    inside = tuple(
        _spec(f"layers.{index}.{role}", shape, f"layers.{index}.{name}", f"blk.{index}.{gguf}")
        for index, tensors in enumerate(layers)
        for role, shape, name, gguf in tensors
    )
    return (embed, *inside, norm) if tied else (embed, *inside, norm, head)


def _spec(role: str, shape: tuple[int, ...], name: str, gguf: str) -> TensorSpec:
    """A GGUF stores the gains with the one added."""
    offset = 1.0 if len(shape) == 1 else 0.0
    return TensorSpec(
        role=role,
        shape=shape,
        name=f"{name}.weight",
        gguf=f"{gguf}.weight",
        gguf_offset=offset,
    )


def _layer_tensors(
    hidden: int, block: LayerSpec
) -> tuple[tuple[str, tuple[int, ...], str, str], ...]:
    head, width = block.head_dim, block.mlp_width
    query, kv = block.heads * head, block.kv_heads * head
    return (
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
