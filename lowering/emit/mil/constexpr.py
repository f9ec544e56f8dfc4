"""Matrices that stand compressed in a package: constants, and the ops that decompress them.

Each op is of opset iOS 18. Their constants stand inside them; the data comes from the weight file,
by part.
"""

from collections.abc import Mapping

import numpy as np
from attrs import frozen

from topoc.lowering.compress.layout import WIDTHS, Constant, at_rank, constants
from topoc.lowering.compress.recipe import Prune, Recipe
from topoc.lowering.emit.mil.environment import Environment
from topoc.lowering.emit.mil.var import Literal, Placed, Type, Var
from topoc.lowering.ir import Weight

RANK = 4  # of a convolution's weight


def matrix(weight: Weight, env: Environment) -> Var:
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

    def decompressed(self) -> Var:
        """The result of the last of its ops."""
        parts = {
            name: self._constant(name, one)
            for name, one in constants(self.how, self.weight.type.shape).items()
        }
        if "lut_scale" in parts:
            steps = {"data": parts["lut"], "scale": parts.pop("lut_scale")}
            (parts["lut"],) = self._op("blockwise_shift_scale", "lut", steps)
        if "data" in parts:
            (whole,) = self._op("blockwise_shift_scale", "", parts)
            return whole
        if "indices" in parts:
            (whole,) = self._op("lut_to_dense", "", parts)
            return whole
        if "lut" in parts:
            mask, kept = self._op("lut_to_sparse", "kept", parts)
            parts = {"mask": mask, "nonzero_data": kept}
        order = ("nonzero_data", "mask")  # in which coremltools lays them down
        (whole,) = self._op("sparse_to_dense", "", {key: parts[key] for key in order})
        return whole

    def _op(self, kind: str, part: str, parts: Mapping[str, Var]) -> list[Var]:
        name = self.env.unique(f"w_{self.weight.role}{'_' if part else ''}{part}")
        return self.env.block.op(f"constexpr_{kind}", name, parts)

    def _constant(self, part: str, constant: Constant) -> Var:
        """A part, which has no name: it stands inside the op."""
        dtype, shape = constant
        data = self._pattern(shape[1]) if "mask" in part else bytes(max(WIDTHS[dtype] // 8, 1))
        literal = Literal(dtype, at_rank(shape, RANK), data, placed=True)
        placed = Placed(self.weight, "conv", part, self.how)
        return Var("", Type(dtype, literal.shape), literal, placed)

    def _pattern(self, columns: int) -> bytes:
        """As many ones in each row of a mask as weights are kept: coremltools counts them."""
        assert isinstance(self.how, Prune)  # noqa: S101 — nothing else has a mask
        ones = np.arange(columns) % self.how.m >= self.how.n
        return ones.astype(np.uint8).tobytes()
