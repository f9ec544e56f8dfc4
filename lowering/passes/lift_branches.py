"""Bring a branch that is near zero up to where its norm's epsilon is a normal number."""

from typing import ClassVar

from attrs import evolve, frozen

from topoc.lowering.ir import Binding, Program, Value
from topoc.lowering.ops.linear import Linear
from topoc.lowering.ops.norm import RmsNorm
from topoc.lowering.passes.rewrite import Pass
from topoc.lowering.rescale import BRANCHES


@frozen(eq=False, repr=False)
class LiftBranches(Pass):
    """Compute a residual branch at a power of two of its true value; its norm takes it out again.

        %b = linear(%x, @down)                 %b = linear(%x, @down * 8)
        %n = rms_norm(%b, @post, eps=e)  -->   %n = rms_norm(%b, @post, eps=e * 64)

    An epsilon of 1e-6 is subnormal in fp16 and off by 1.3 %, or zero where subnormals are flushed;
    a branch whose mean square is below it (1e-8 in Gemma 3 270M, at BOS) shows that in the logits.
    `factors` has an entry a layer: a factor for each branch, in the order of `BRANCHES`.
    """

    name: ClassVar[str] = "lift-branches"
    factors: tuple[tuple[float, ...], ...] = ()

    def run(self, program: Program) -> Program:
        """Lift each branch whose factor isn't one."""
        if all(factor == 1.0 for layer in self.factors for factor in layer):
            return program
        producers = {value: b for b in program.bindings for value in b.results}
        changed: dict[Value, Binding] = {}
        for binding in program.bindings:
            norm = binding.op
            branch = producers.get(norm.x) if isinstance(norm, RmsNorm) else None
            factor = self._factor(branch)
            if not (isinstance(norm, RmsNorm) and branch and isinstance(branch.op, Linear)):
                continue
            if factor != 1.0:
                weight = branch.op.weight.scaled(factor)
                changed[branch.result] = evolve(branch, op=evolve(branch.op, weight=weight))
                lifted = evolve(norm, eps=norm.eps * factor**2)
                changed[binding.result] = evolve(binding, op=lifted)
        return evolve(
            program, bindings=tuple(changed.get(b.results[0], b) for b in program.bindings)
        )

    def _factor(self, branch: Binding | None) -> float:
        if branch is None or branch.layer is None:
            return 1.0
        if not isinstance(branch.op, Linear):
            return 1.0
        role = branch.op.weight.role.rpartition(".")[2]
        return dict(zip(BRANCHES, self.factors[branch.layer], strict=False)).get(role, 1.0)
