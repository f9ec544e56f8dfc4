"""How many channels the tensors of a recipe have, as far as a layer table tells."""

from topoc.dsl.model import Layers, Recipe


def outputs(layers: Layers, recipe: Recipe) -> int:
    """The output channels of a tensor; 0 where the table does not say."""
    if recipe.role == "head":
        return layers.vocabulary
    if recipe.role in {"o", "down"}:
        return layers.hidden
    if recipe.layer is None:
        return 0
    layer = layers.layers[recipe.layer]
    return {
        "q": layer.heads * layer.head_dim,
        "k": layer.kv_heads * layer.head_dim,
        "v": layer.kv_heads * layer.head_dim,
        "gate": layer.mlp_width,
        "up": layer.mlp_width,
    }.get(recipe.role, 0)


def inputs(layers: Layers, recipe: Recipe) -> int:
    """The input channels of a tensor; 0 where the table does not say."""
    if recipe.role in {"q", "k", "v", "gate", "up", "head"}:
        return layers.hidden
    if recipe.layer is None:
        return 0
    layer = layers.layers[recipe.layer]
    return {"o": layer.heads * layer.head_dim, "down": layer.mlp_width}.get(recipe.role, 0)
