"""What a manifest tells of compressed weights and quantised activations."""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import isfinite

from topoc.lowering import manifest
from topoc.lowering.compress.recipe import Linear, Palettize, Recipe
from topoc.lowering.compressed import Fact
from topoc.lowering.ir import Weight
from topoc.lowering.plan import Plan
from topoc.lowering.recipes import language_role, matrices


def quantization(
    plan: Plan, made: Mapping[str, Fact], before: manifest.Quantization | None = None
) -> manifest.Quantization | None:
    """Every compressed weight in the order of packages; None where nothing is compressed.

    `before` is what the bundle told whose packages were kept.
    """
    kept = {} if before is None else {one.weight: one for one in before.tensors}
    tensors = tuple(
        _tensor(weight, how, made[weight.key]) if weight.key in made else kept[weight.key]
        for weight, how in _compressed(plan)
    )
    if not tensors and not plan.activations:
        return None
    sizes: Counter[str] = Counter()
    for one in tensors:
        sizes[one.role] += one.bytes
    return manifest.Quantization(
        bytes=dict(sorted(sizes.items())), tensors=tensors, activations=_activations(plan)
    )


def _activations(plan: Plan) -> manifest.Activations | None:
    if not plan.activations:
        return None
    return manifest.Activations(scheme="int8(per = tensor)", scales=dict(plan.activations))


def _compressed(plan: Plan) -> Iterator[tuple[Weight, Recipe]]:
    found = {
        weight.key: (weight, package.recipes[weight.role])
        for package in plan.packages
        for weight in matrices(package.programs)
        if weight.role in package.recipes
    }
    yield from found.values()


def _tensor(weight: Weight, how: Recipe, fact: Fact) -> manifest.Tensor:
    role, layer = language_role(weight.role)
    lost = fact.damage
    return manifest.Tensor(
        weight=weight.key,
        role=role,
        layer=layer,
        scheme=scheme(how),
        bytes=fact.bytes,
        sqnr=lost.sqnr if lost is not None and isfinite(lost.sqnr) else None,
        output_error=lost.output_error if lost is not None and fact.judged else None,
    )


def scheme(how: Recipe) -> str:
    """A recipe as a topology would have it."""
    if isinstance(how, Palettize):
        group = how.group or "per_tensor"
        lut = "" if how.lut == "fp16" else f", lut = {how.lut}"
        return f"palettize(bits = {how.bits}, group = {group}{lut})"
    if isinstance(how, Linear):
        block = how.per == "block"
        return f"int4(block = {how.block})" if block else f"int8(per = {how.per})"
    pruned = f"prune(n = {how.n}, m = {how.m})"
    return pruned if how.then is None else f"{pruned} + {scheme(how.then)}"
