"""Gemma 3: five sliding layers to one full, four norms a layer, q and k normalised."""

from collections.abc import Mapping
from pathlib import Path

from attrs import evolve

from topoc.dsl.model import Kind
from topoc.lowering.architecture import Architecture, LayerSpec, Norms, Rope, TensorSpec
from topoc.lowering.families import gemma, geometry, kinds
from topoc.lowering.families.config import Fields
from topoc.lowering.families.geometry import Geometry
from topoc.lowering.families.known import DENSE, Neutral
from topoc.lowering.families.rotary import Spelling, rotary
from topoc.lowering.families.wrapped import Wrapped
from topoc.lowering.jsonfile import named

NORMS = Norms(eps=1e-6, offset=1.0, post_attention=True, post_mlp=True, query_key=True)

# How a config spells the rotary embedding of each kind.
SPELLINGS = {
    Kind.SLIDING: Spelling("sliding_attention", "rope_local_base_freq", None, 10_000.0),
    Kind.FULL: Spelling("full_attention", "rope_theta", "rope_scaling", 1_000_000.0),
}

NEUTRAL: Neutral = (
    *DENSE,
    ("attn_logit_softcapping", ()),  # transformers takes the field and does not apply it
    ("num_kv_shared_layers", (0,)),
    ("use_bidirectional_attention", (False,)),
)


def read(config: Mapping[str, object], file: Path) -> Architecture:
    """A text model on its own."""
    return _read(Wrapped.flat(config, file))


def read_nested(config: Mapping[str, object], file: Path) -> Architecture:
    """The text model inside an image-and-text one; tying is what the outer object says."""
    return _read(Wrapped.nested(config, file, "gemma3_text"))


def _read(both: Wrapped) -> Architecture:
    text = both.text
    hidden = text.count("hidden_size", 2304)
    tied = both.tied()
    vocabulary = text.count("vocab_size", 262_208)
    blocks = _blocks(text)
    found = Architecture(
        family="gemma3",
        config=text.file,
        hidden=hidden,
        vocabulary=vocabulary,
        positions=text.count("max_position_embeddings", 131_072),
        layers=blocks,
        ropes=_ropes(text, blocks),
        norms=evolve(NORMS, eps=text.number("rms_norm_eps", NORMS.eps)),
        activation=gemma.activation(text),
        attention_scale=text.number("query_pre_attn_scalar", 256) ** -0.5,
        embed_multiplier=hidden**0.5,
        final_softcap=gemma.softcap(text),
        tied=tied,
        bos=both.ids("bos_token_id", (2,)),
        eos=both.stops((1,)),
        tensors=_tensors(hidden, vocabulary, blocks, tied=tied),
    )
    return evolve(found, notices=both.finish(NEUTRAL))


def _blocks(text: Fields) -> tuple[LayerSpec, ...]:
    heads = text.count("num_attention_heads", 8)
    kv_heads = text.count("num_key_value_heads", 4)
    head_dim = text.count("head_dim", 256)
    geometry.check(text, heads, Geometry(kv_heads=kv_heads, head_dim=head_dim))
    width = text.count("intermediate_size", 9216)
    each = _kinds(text, text.count("num_hidden_layers", 26, most=kinds.MOST_LAYERS))
    window = kinds.window(text, each, 4096)
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
        for kind in each
    )


def _kinds(text: Fields, count: int) -> tuple[Kind, ...]:
    """The explicit list, or every sixth layer full (`sliding_window_pattern` gives the number)."""
    text.taken.add("sliding_window_pattern")
    return kinds.listed(text, count) or kinds.every(_period(text), count)


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


def _ropes(text: Fields, blocks: tuple[LayerSpec, ...]) -> tuple[tuple[str, Rope], ...]:
    parameters = text.within("rope_parameters")
    used = {block.kind for block in blocks}
    ropes = []
    for kind, spelling in SPELLINGS.items():
        rope = rotary(text, parameters, spelling, blocks[0].head_dim)
        if kind in used:
            ropes.append((kind.value, rope))
    parameters.finish(frozenset())
    return tuple(ropes)


def _tensors(
    hidden: int, vocabulary: int, blocks: tuple[LayerSpec, ...], *, tied: bool
) -> tuple[TensorSpec, ...]:
    inside = [
        row
        for index, block in enumerate(blocks)
        for row in gemma.layer_rows(index, gemma.decoder_layer(hidden, block))
    ]
    rows = [
        ("embed", (vocabulary, hidden), "embed_tokens", "token_embd"),
        *inside,
        *gemma.tail(hidden, vocabulary, tied=tied),
    ]
    return gemma.weights(rows, gguf_offset=NORMS.offset)
