"""What a checkpoint is, whatever its family: the data that every decoder layer is lowered from."""

from math import prod
from pathlib import Path
from typing import Literal

from attrs import field, frozen

from topoc.dsl import model
from topoc.dsl.model import Kind
from topoc.dsl.plain import Plain


@frozen(kw_only=True, eq=False, repr=False)
class Rope(Plain):
    """The rotary embedding of one attention geometry, in the half-split layout.

    Pair i turns by position * theta^(-2i / width) / factor; with `turning`, the pairs from that
    one on stand still (cosine one, sine zero).
    """

    theta: float
    width: int
    factor: float = 1.0
    turning: int | None = None


@frozen(kw_only=True, eq=False, repr=False)
class LayerSpec(Plain):
    """One decoder layer; `rope` names an entry of `Architecture.ropes`."""

    kind: Kind
    window: int | None
    donor: int | None
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    rope: str


@frozen(kw_only=True, eq=False, repr=False)
class Norms(Plain):
    """Which RMS norms a layer has, and what their stored gains mean: gain = offset + weight."""

    eps: float
    offset: float = 0.0
    post_attention: bool = False  # on the attention branch, before it is added
    post_mlp: bool = False
    query_key: bool = False
    value: bool = False  # of each value head, without a gain


@frozen(kw_only=True, eq=False, repr=False)
class PerLayer(Plain):
    """Per-layer embeddings: a vector of `width` for each token and layer, added by a gated branch.

    context = rms(projection e * projection_factor) * gain, with e the token's embedding;
    vector  = (context + row of the per-layer table * row_multiplier) * combined_factor.
    """

    width: int
    vocabulary: int  # rows of the per-layer table that tokens have
    row_multiplier: float
    projection_factor: float
    combined_factor: float


@frozen(kw_only=True, eq=False, repr=False)
class TensorSpec(Plain):
    """One tensor that the decoder needs.

    `role` is the name that programs use: `embed`, `norm`, `head`, `layers.3.q`. `name` is the
    Hugging Face name without any prefix before `layers.`/`embed_tokens`/`norm`; `gguf` the name
    in a GGUF file, whose stored values exceed Hugging Face's by `gguf_offset`.
    """

    role: str
    shape: tuple[int, ...]
    name: str
    gguf: str
    gguf_offset: float = 0.0


@frozen(kw_only=True, eq=False, repr=False)
class Architecture(Plain):
    """A decoder checkpoint: dimensions, layers, norms, scales and the tensors it must hold."""

    family: str
    config: Path
    hidden: int
    vocabulary: int
    positions: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[tuple[str, Rope], ...]
    norms: Norms
    activation: Literal["gelu_tanh", "silu"]
    attention_scale: float
    embed_multiplier: float = 1.0
    final_softcap: float | None = None
    tied: bool = True
    per_layer: PerLayer | None = None
    layer_scalar: bool = False  # each layer's output times a number of its own
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()
    notices: tuple[str, ...] = ()  # defaults that the config left to the family, in words
    tensors: tuple[TensorSpec, ...] = field(default=(), repr=False)
    # names like a tensor's that some checkpoints hold, and that the model makes no use of
    redundant: tuple[str, ...] = field(default=(), repr=False)

    def rope(self, name: str) -> Rope:
        """The geometry of this name."""
        return dict(self.ropes)[name]

    @property
    def reach(self) -> int:
        """How many tokens, from 0 on, have a row in every table."""
        return self.vocabulary if self.per_layer is None else self.per_layer.vocabulary


def read(path: Path) -> Architecture:
    """The architecture that a `config.json` describes; `path` is the file or its folder."""
    from topoc.lowering.families import of
    from topoc.lowering.jsonfile import load

    file = path / "config.json" if path.is_dir() else path
    config = load(file)
    return of(config, file)(config, file)


def layers(path: Path) -> model.Layers:
    """The layer table of a `config.json`, as the language wants it.

    The head counts in full where it is tied too: the chunk that holds it stores the matrix.
    """
    found = read(path)
    mine: dict[int, list[TensorSpec]] = {index: [] for index in range(len(found.layers))}
    for tensor in found.tensors:
        group, _, rest = tensor.role.partition(".")
        if group == "layers":
            mine[int(rest.partition(".")[0])].append(tensor)
    return model.Layers(
        family=found.family,
        config=found.config,
        layers=tuple(_layer(spec, mine[i]) for i, spec in enumerate(found.layers)),
        hidden=found.hidden,
        vocabulary=found.vocabulary,
        positions=found.positions,
        has_ple=found.per_layer is not None,
        head_parameters=found.vocabulary * found.hidden,
        embed_parameters=found.vocabulary * found.hidden,
    )


def _layer(spec: LayerSpec, tensors: list[TensorSpec]) -> model.Layer:
    return model.Layer(
        kind=spec.kind,
        window=spec.window,
        donor=spec.donor,
        kv_weights=any(tensor.role.endswith(".k") for tensor in tensors),
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        parameters=sum(prod(tensor.shape) for tensor in tensors),
        mlp_width=spec.mlp_width,
    )
