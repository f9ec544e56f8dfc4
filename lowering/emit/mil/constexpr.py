"""Matrices that stand compressed in a package: constants, and the ops that decompress them.

Each op is of opset iOS 18. Constants that feed such an op alone stand inside it; their data comes
from the sink by part, as that of any weight.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from topoc.lowering.compress.layout import Constant, at_rank, constants
from topoc.lowering.compress.recipe import Prune, Recipe
from topoc.lowering.emit.mil.environment import Environment, Placed
from topoc.lowering.emit.mil.toolkit import toolkit
from topoc.lowering.ir import Weight

RANK = 4  # of a convolution's weight


def matrix(weight: Weight, env: Environment) -> Any:
    """A convolution's weight (O, I, 1, 1), compressed where its role has a recipe."""
    how = env.recipes.get(weight.role)
    if how is None:
        return env.weight(weight, "conv")
    return env.once((weight, how), lambda: _Matrix(weight, how, env).decompressed())


@frozen
class _Matrix:
    """One compressed weight being emitted."""

    weight: Weight
    how: Recipe
    env: Environment

    def decompressed(self) -> Any:
        """The result of the last of its ops."""
        parts = {
            name: self._constant(name, one)
            for name, one in constants(self.how, self.weight.type.shape).items()
        }
        if "lut_scale" in parts:
            scale = parts.pop("lut_scale")
            steps = {"data": parts["lut"], "scale": scale}
            parts["lut"] = self._op("blockwise_shift_scale", "lut", steps)
        if "data" in parts:
            return self._op("blockwise_shift_scale", "", parts)
        if "indices" in parts:
            return self._op("lut_to_dense", "", parts)
        if "lut" in parts:
            mask, kept = self._op("lut_to_sparse", "kept", parts)
            parts = {"mask": mask, "nonzero_data": kept}
        return self._op("sparse_to_dense", "", parts)

    def _op(self, kind: str, part: str, parts: Mapping[str, Any]) -> Any:
        return getattr(toolkit().mb, f"constexpr_{kind}")(**parts, name=self._name(part))

    def _constant(self, part: str, constant: Constant) -> Any:
        dtype, shape = constant
        types = toolkit().types
        kind = types.nptype_from_builtin(types.string_to_builtin(dtype))
        row = np.zeros((), np.float16 if dtype == "fp16" else np.dtype(kind))
        if "mask" in part:
            row = self._pattern(shape[1])
        value = np.broadcast_to(row, at_rank(shape, RANK)).view(kind)  # loses its name before that
        placed = Placed(self.weight, "conv", part, self.how)
        return self.env.placed(placed, value, self._name(part))

    def _pattern(self, columns: int) -> np.ndarray[Any, Any]:
        """As many ones in each row of a mask as weights are kept: coremltools counts them."""
        assert isinstance(self.how, Prune)  # noqa: S101 — nothing else has a mask
        ones = np.arange(columns) % self.how.m >= self.how.n
        return ones.astype(np.uint8).reshape(columns, 1, 1)

    def _name(self, part: str) -> str:
        return self.env.unique(f"w_{self.weight.role}{'_' if part else ''}{part}")
