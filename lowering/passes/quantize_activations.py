"""Let projections read what int8 keeps of their inputs."""

from typing import ClassVar

from attrs import evolve, frozen

from topoc.lowering.ir import Binding, Program, Value
from topoc.lowering.ops.linear import Linear
from topoc.lowering.ops.quantize import QuantizeDequantize
from topoc.lowering.passes.rewrite import Pass


@frozen(eq=False, repr=False)
class QuantizeActivations(Pass):
    """Put a value through int8 before its first projection; projections of one value share it.

        %q = linear(%x, @q)             %i = quantize_dequantize(%x, scale=1.0)
        %k = linear(%x, @k)      -->    %q = linear(%i, @q)
                                        %k = linear(%i, @k)

    What else reads the value reads it whole. The scale is one until a text has told it
    (`lowering.activations`).
    """

    name: ClassVar[str] = "quantize-activations"
    asked: bool = False

    def run(self, program: Program) -> Program:
        """Do so for every projection, or return the program as it is where nobody asked."""
        if not self.asked:
            return program
        made: dict[Value, Value] = {}
        bindings: list[Binding] = []
        for binding in program.bindings:
            op = binding.op
            if not isinstance(op, Linear):
                bindings.append(binding)
                continue
            if op.x not in made:
                made[op.x] = Value(f"{op.x.name}_int8", op.x.type)
                through = QuantizeDequantize(op.x, 1.0)
                bindings.append(evolve(binding, results=(made[op.x],), op=through))
            bindings.append(evolve(binding, op=evolve(op, x=made[op.x])))
        return evolve(program, bindings=tuple(bindings))
