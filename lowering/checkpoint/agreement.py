"""Whether the metadata of a GGUF file says what the config says, field by field."""

from collections.abc import Iterator
from math import isclose

from topoc.dsl.diagnostic import Diagnostic, Place, error
from topoc.dsl.model import Kind
from topoc.lowering.architecture import Architecture, LayerSpec
from topoc.lowering.checkpoint.gguf import Gguf

Fact = float | tuple[float, ...]


def contradictions(reader: Gguf, architecture: Architecture) -> list[Diagnostic]:
    """One error for each field on which they differ; a field that the file lacks says nothing."""
    found = []
    family = reader.metadata.get("general.architecture")
    if family != architecture.family:
        message = (
            f"the file is of architecture `{family}` and the config of `{architecture.family}`"
        )
        found.append(_differs(reader, "general.architecture", message))
    for field, wanted in _facts(architecture):
        key = f"{family}.{field}"
        stored = reader.metadata.get(key)
        if stored is not None and not _same(stored, wanted):
            message = f"`{key}` is {stored} in the file and {wanted} by the config"
            found.append(_differs(reader, key, message))
    return found


def _differs(reader: Gguf, key: str, message: str) -> Diagnostic:
    place = Place(str(reader.path), key)
    way = "use the config and the weights of one model"
    return error("model.contradicts-checkpoint", message, place, help=way)


def _facts(architecture: Architecture) -> Iterator[tuple[str, Fact]]:
    """What a GGUF file may say, under its own names."""
    layers = architecture.layers
    yield "block_count", len(layers)
    yield "embedding_length", architecture.hidden
    yield "vocab_size", architecture.vocabulary
    yield "attention.layer_norm_rms_epsilon", architecture.norms.eps
    yield "feed_forward_length", _each(layers, "mlp_width")
    yield "attention.head_count", _each(layers, "heads")
    yield "attention.head_count_kv", _each(layers, "kv_heads")
    yield "attention.key_length", _each(layers, "head_dim")
    yield "attention.value_length", _each(layers, "head_dim")
    yield "final_logit_softcapping", architecture.final_softcap or 0.0
    for layer in layers:
        if layer.window is not None:
            yield "attention.sliding_window", layer.window
            break
    ropes = {layer.kind: architecture.rope(layer.rope) for layer in layers}
    if Kind.FULL in ropes:
        yield "rope.freq_base", ropes[Kind.FULL].theta
        yield "rope.scaling.factor", ropes[Kind.FULL].factor
    if Kind.SLIDING in ropes:
        yield "rope.freq_base_swa", ropes[Kind.SLIDING].theta


def _each(layers: tuple[LayerSpec, ...], name: str) -> Fact:
    """One number where all layers agree, else one a layer."""
    values = tuple(float(getattr(layer, name)) for layer in layers)
    return int(values[0]) if len(set(values)) == 1 else values


def _same(stored: object, wanted: Fact) -> bool:
    """Equal up to the float32 of GGUF; a list may spell out what all layers share."""
    if isinstance(stored, tuple):
        several = wanted if isinstance(wanted, tuple) else (wanted,) * len(stored)
        pairs = zip(stored, several, strict=False)
        return len(stored) == len(several) and all(_same(one, other) for one, other in pairs)
    if isinstance(wanted, tuple) or isinstance(stored, str):
        return False
    return isinstance(stored, int | float) and isclose(stored, wanted, rel_tol=1e-6)
