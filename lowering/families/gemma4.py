"""Gemma 4: keys and values shared by later layers, two head widths, per-layer embeddings."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import evolve

from topoc.dsl.model import Kind
from topoc.lowering.architecture import Architecture, LayerSpec, Norms, PerLayer, Rope, TensorSpec
from topoc.lowering.families import gemma, geometry, kinds
from topoc.lowering.families.config import Fields
from topoc.lowering.families.gemma import Row
from topoc.lowering.families.known import DENSE, Neutral
from topoc.lowering.families.rotary import stated
from topoc.lowering.families.wrapped import Wrapped

PERIOD = 6  # where no list says the kinds, each sixth layer is full

NORMS = Norms(eps=1e-6, post_attention=True, post_mlp=True, query_key=True, value=True)

ROPES = {
    Kind.SLIDING: Rope(theta=10_000.0, width=256),
    Kind.FULL: Rope(theta=1_000_000.0, width=512, turning=64),
}

NEUTRAL: Neutral = (
    *DENSE,
    ("attention_k_eq_v", (False,)),
    ("top_k_experts", (0,)),
    # `vision` lets the tokens of an image see each other; a text has none
    ("use_bidirectional_attention", (False, "vision")),
)


def read(config: Mapping[str, object], file: Path) -> Architecture:
    """A text model on its own."""
    return _read(Wrapped.flat(config, file))


def read_nested(config: Mapping[str, object], file: Path) -> Architecture:
    """The text model inside one that sees and hears too; tying is what the outer object says."""
    return _read(Wrapped.nested(config, file, "gemma4_text"))


def _read(both: Wrapped) -> Architecture:
    text = both.text
    hidden = text.count("hidden_size", 2304)
    vocabulary = text.count("vocab_size", 262_144)
    blocks = _blocks(text)
    per_layer, rows = _per_layer(text, hidden, vocabulary)
    found = Architecture(
        family="gemma4",
        config=text.file,
        hidden=hidden,
        vocabulary=vocabulary,
        positions=text.count("max_position_embeddings", 131_072),
        layers=blocks,
        ropes=_ropes(text, blocks),
        norms=evolve(NORMS, eps=text.number("rms_norm_eps", NORMS.eps)),
        activation=gemma.activation(text),
        attention_scale=1.0,
        embed_multiplier=hidden**0.5,
        final_softcap=gemma.softcap(text),
        tied=both.tied(),
        per_layer=per_layer,
        layer_scalar=True,
        bos=both.ids("bos_token_id", (2,)),
        eos=both.stops((1,)),
    )
    tensors, redundant = _tensors(found, rows), _redundant(blocks)
    return evolve(found, tensors=tensors, redundant=redundant, notices=both.finish(NEUTRAL))


def _blocks(text: Fields) -> tuple[LayerSpec, ...]:
    heads = text.count("num_attention_heads", 8)
    each = _kinds(text, text.count("num_hidden_layers", 30, most=kinds.MOST_LAYERS))
    window = kinds.window(text, each, 512)
    donors = _donors(text, each)
    shapes = geometry.of(text, heads, each, donors)
    width = text.count("intermediate_size", 9216)
    double = text.flag("use_double_wide_mlp", default=False)
    return tuple(
        LayerSpec(
            kind=kind,
            window=window if kind is Kind.SLIDING else None,
            donor=donor,
            heads=heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            mlp_width=width * (2 if double and donor is not None else 1),
            rope=kind.value,
        )
        for kind, donor, shape in zip(each, donors, shapes, strict=True)
    )


def _kinds(text: Fields, count: int) -> tuple[Kind, ...]:
    """The last layer is full: transformers makes it so, whatever the config says."""
    said = kinds.listed(text, count)
    if not said:
        text.notices.append("`layer_types` is not given: each sixth layer and the last one is full")
        return (*kinds.every(PERIOD, count)[:-1], Kind.FULL)
    if said[-1] is not Kind.FULL:
        found = f"layer {len(said) - 1}, the last one, is sliding, and the family's is full"
        way = "transformers computes it as full: say so, if the checkpoint was trained like that"
        text.refuse("layer_types", found, code="model.not-lowered", way=way)
    return said


def _donors(text: Fields, each: tuple[Kind, ...]) -> tuple[int | None, ...]:
    """The last layers read the keys and values of the last one of their kind that makes its own."""
    name, count = "num_kv_shared_layers", len(each)
    shared = text.count(name, 0, least=0)
    if shared >= count:
        text.refuse(name, f"{shared} of {count} layers share keys and values, and none makes them")
        return (None,) * count
    first = count - shared
    last = {kind: index for index, kind in enumerate(each[:first])}
    for kind in sorted(set(each) - last.keys(), key=lambda one: one.value):
        found = f"layer {each.index(kind)} shares keys and values of a {kind.value} layer before"
        text.refuse(name, f"{found} layer {first}, and there is none")
    return tuple(None if index < first else last.get(kind) for index, kind in enumerate(each))


def _per_layer(text: Fields, hidden: int, vocabulary: int) -> tuple[PerLayer | None, int]:
    """The per-layer embeddings, which a width of zero switches off, and their table's rows."""
    width = text.count("hidden_size_per_layer_input", 256, least=0)
    name = "vocab_size_per_layer_input"
    rows = text.count(name, 262_144, least=0)
    if not width:
        return None, rows
    if not rows:
        text.refuse(name, f"`{name}` is 0 and must be at least 1")
    if rows < vocabulary:
        note = f"tokens from {rows} on have no per-layer row, and no prompt may hold them"
        text.notices.append(note)
    per_layer = PerLayer(
        width=width,
        vocabulary=min(rows, vocabulary),
        row_multiplier=width**0.5,
        projection_factor=hidden**-0.5,
        combined_factor=2.0**-0.5,
    )
    return per_layer, rows


def _ropes(text: Fields, blocks: tuple[LayerSpec, ...]) -> tuple[tuple[str, Rope], ...]:
    """`rope_parameters` says all, or the family does; nothing at the top level counts."""
    widths = {block.kind: block.head_dim for block in blocks}
    parameters = text.within("rope_parameters")
    if not text.has("rope_parameters"):
        text.notices.append("the config gives no `rope_parameters`, and the family's count")
    ropes = []
    for kind, usual in ROPES.items():
        entry = f"{kind.value}_attention"
        if kind not in widths:
            parameters.taken.add(entry)
        elif text.has("rope_parameters"):
            ropes.append((kind.value, stated(parameters, entry, widths[kind])))
        else:
            ropes.append((kind.value, _usual(usual, widths[kind])))
    parameters.finish(frozenset())
    return tuple(ropes)


def _usual(rope: Rope, width: int) -> Rope:
    """The family's embedding for another width; the same share of the pairs turns."""
    turning = None if rope.turning is None else rope.turning * width // rope.width
    return evolve(rope, width=width, turning=turning)


def _tensors(found: Architecture, rows: int) -> tuple[TensorSpec, ...]:
    """Every tensor, the per-layer table of so many rows."""
    hidden, count = found.hidden, len(found.layers)
    named = (
        ("embed", (found.vocabulary, hidden), "embed_tokens", "token_embd"),
        *_model(hidden, count, found.per_layer, rows),
        *_layers(hidden, found.layers, found.per_layer),
        *gemma.tail(hidden, found.vocabulary, tied=found.tied),
    )
    return (*gemma.weights(named, gguf_offset=NORMS.offset), *map(_scalar, range(count)))


def _model(hidden: int, layers: int, per_layer: PerLayer | None, rows: int) -> tuple[Row, ...]:
    """The tensors that make per-layer vectors."""
    if per_layer is None:
        return ()
    width = per_layer.width
    channels = layers * width
    projection = ("per_layer_model_projection", "per_layer_model_proj")
    return (
        ("ple_table", (rows, channels), "embed_tokens_per_layer", "per_layer_token_embd"),
        ("ple.projection", (channels, hidden), *projection),
        ("ple.norm", (width,), "per_layer_projection_norm", "per_layer_proj_norm"),
    )


def _layers(
    hidden: int, blocks: tuple[LayerSpec, ...], per_layer: PerLayer | None
) -> Iterator[Row]:
    for index, block in enumerate(blocks):
        rows = (*gemma.decoder_layer(hidden, block), *_branch(hidden, per_layer))
        yield from gemma.layer_rows(index, rows)


def _scalar(index: int) -> TensorSpec:
    """The number that a layer's output is multiplied by, whose name has no ending."""
    return TensorSpec(
        role=f"layers.{index}.scalar",
        shape=(1,),
        name=f"layers.{index}.layer_scalar",
        gguf=f"blk.{index}.layer_output_scale.weight",
    )


def _branch(hidden: int, per_layer: PerLayer | None) -> tuple[Row, ...]:
    """The tensors of a layer's gated branch."""
    if per_layer is None:
        return ()
    width = per_layer.width
    return (
        ("ple_gate", (width, hidden), "per_layer_input_gate", "inp_gate"),
        ("ple_projection", (hidden, width), "per_layer_projection", "proj"),
        ("ple_norm", (hidden,), "post_per_layer_input_norm", "post_norm"),
    )


def _redundant(blocks: tuple[LayerSpec, ...]) -> tuple[str, ...]:
    """What some checkpoints hold for layers that share; transformers passes it over by name."""
    parts = ("k_proj", "v_proj", "k_norm", "v_norm")
    return tuple(
        f"layers.{index}.self_attn.{part}.weight"
        for index, block in enumerate(blocks)
        if block.donor is not None
        for part in parts
    )
