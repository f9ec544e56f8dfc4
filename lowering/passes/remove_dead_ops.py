"""Drop what nothing reads."""

from typing import ClassVar

from attrs import evolve, frozen

from topoc.lowering.ir import Binding, Program, Value
from topoc.lowering.ops.cache import WriteState
from topoc.lowering.passes.rewrite import Pass


@frozen(eq=False, repr=False)
class RemoveDeadOps(Pass):
    """Drop every binding and every input that neither an op nor an output reads.

    What a state is written with stays: the next call reads it.

    %a = f(%x)             %b = g(%x)
    %b = g(%x)      -->    return %b
    return %b
    """

    name: ClassVar[str] = "remove-dead-ops"

    def run(self, program: Program) -> Program:
        """Keep what some output depends on."""
        live: set[Value] = {output.value for output in program.outputs}
        kept: list[Binding] = []
        for binding in reversed(program.bindings):
            if isinstance(binding.op, WriteState) or not live.isdisjoint(binding.results):
                live.update(binding.op.operands)
                kept.append(binding)
        inputs = tuple(one for one in program.inputs if one.value in live)
        if len(kept) == len(program.bindings) and inputs == program.inputs:
            return program
        return evolve(program, inputs=inputs, bindings=tuple(reversed(kept)))
