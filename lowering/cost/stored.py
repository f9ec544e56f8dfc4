"""The bytes of weights as a package stores them, from elements and recipes alone.

Tables of palettes and scales are small beside their indices (a thousandth in the packages of
Gemma 4 E2B, by CoreML-LLM's LTA report) and count only where every block of 32 has its own scale.
"""

from collections.abc import Sequence

from topoc.dsl.model import Layer, Layers, Scheme, Topology

_BITS = 16  # of fp16
_BYTE = 8
_FP16 = _BITS / _BYTE


def element_bytes(schemes: Sequence[Scheme]) -> float:
    """Bytes an element under the schemes of one recipe."""
    bits, kept, mask = float(_BITS), 1.0, 0.0
    for scheme in schemes:
        given = dict(scheme.arguments)
        if scheme.name == "palettize":
            bits = float(given["bits"])
        elif scheme.name == "int8":
            bits = 8.0
        elif scheme.name == "int4":
            bits = 4.0 + _BITS / float(given["block"])
        elif scheme.name == "prune":  # the kept ones, and a bit each that says which they are
            kept, mask = 1 - float(given["n"]) / float(given["m"]), 1.0
    return (bits * kept + mask) / _BYTE


def layer_bytes(topology: Topology) -> list[int]:
    """Each layer's matrices as stored."""
    recipes = {(one.role, one.layer): element_bytes(one.schemes) for one in topology.recipes}
    table = topology.layers
    return [
        round(
            sum(
                elements * recipes.get((role, at), _FP16)
                for role, elements in role_elements(table, layer).items()
            )
        )
        for at, layer in enumerate(table.layers)
    ]


def role_elements(table: Layers, layer: Layer) -> dict[str, int]:
    """A layer's elements by tensor role.

    The attention's follow from its geometry. What is left is the MLP, in three equal shares; the
    gates of per-layer embeddings, a fiftieth of it in Gemma 4, are counted with them.
    """
    query, key = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    found = {"q": table.hidden * query, "o": table.hidden * query}
    if layer.kv_weights:
        found |= {"k": table.hidden * key, "v": table.hidden * key}
    rest = max(layer.parameters - sum(found.values()), 0)
    third = rest // 3
    mlp = {"gate": third, "up": third, "down": rest - 2 * third}
    scale = layer.parameters / max(sum(found.values()) + rest, 1)
    return {role: round(n * scale) for role, n in {**found, **mlp}.items()}
