"""Fold the attention scale into the query norm."""

from collections import Counter
from itertools import chain
from typing import ClassVar

from attrs import evolve, frozen

from topoc.lowering.ir import Binding, Program, Value
from topoc.lowering.ops.attention import Attention, TiledAttention
from topoc.lowering.ops.heads import Rope, TokenRows
from topoc.lowering.ops.norm import RmsNorm
from topoc.lowering.passes.rewrite import Pass


@frozen(eq=False, repr=False)
class FoldQueryScale(Pass):
    """Multiply the gain of a query norm by the scale, instead of every score.

        %q = rms_norm(%x, @q_norm)            %q = rms_norm(%x, @q_norm * 0.0625)
        %t = rope(%q, %cos, %sin)             %t = rope(%q, %cos, %sin)
        %r = token_rows(%t)             -->   %r = token_rows(%t)
        %a = attention(%r, scale=0.0625)      %a = attention(%r, scale=1.0)

    A query without a norm keeps its scale: folding it into a projection would put the weights
    that are compressed under another factor than the checkpoint's.
    """

    name: ClassVar[str] = "fold-query-scale"

    def run(self, program: Program) -> Program:
        """Fold wherever the query is a turned norm that nothing else reads."""
        producers = {value: b for b in program.bindings for value in b.results}
        reads = Counter(chain.from_iterable(b.op.operands for b in program.bindings))
        changed: dict[Value, Binding] = {}
        for binding in program.bindings:
            if not isinstance(binding.op, (Attention, TiledAttention)) or binding.op.scale == 1.0:
                continue
            norm = _norm_behind(binding.op.q, producers, reads)
            if norm is None or not isinstance(norm.op, RmsNorm):
                continue
            gain = norm.op.gain.scaled(binding.op.scale)
            changed[norm.result] = evolve(norm, op=evolve(norm.op, gain=gain))
            changed[binding.result] = evolve(binding, op=evolve(binding.op, scale=1.0))
        if not changed:
            return program
        return evolve(
            program, bindings=tuple(changed.get(b.results[0], b) for b in program.bindings)
        )


def _norm_behind(
    value: Value, producers: dict[Value, Binding], reads: Counter[Value]
) -> Binding | None:
    """What a chain of values with one reader each begins with."""
    binding = producers.get(value) if reads[value] == 1 else None
    while binding is not None and isinstance(binding.op, (TokenRows, Rope)):
        value = binding.op.x
        binding = producers.get(value) if reads[value] == 1 else None
    return binding
