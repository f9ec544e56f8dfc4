"""An input that nothing is computed from."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject
from topoc.dsl.model import COREML_LLM, Write

if TYPE_CHECKING:
    from topoc.dsl.lint.mil import Function


class DeadInput(Rule):
    """Every input has a part in some output.

    A host fills it at each step for nothing. Where a runtime insists on its set of inputs there is
    no other way, and that is what a features profile is for. coremltools keeps such an input alive
    with an `identity` that nobody reads.
    """

    severity = Severity.NOTE
    remedy = "Leave the input out, unless the runtime that feeds it insists."
    evidence = (
        Evidence(
            "chunks 3 and 4 declare `update_mask`, and no op of theirs reads it",
            "CoreML-LLM conversion/models/gemma4_swa_chunks.py:413-430 (72178c6)",
            "2026-05-06",
            Trust.REPORTED,
        ),
        Evidence(
            "an input that is not used gains an `identity` called NAME_tmp",
            "coremltools 9.0, pass handle_unused_inputs",
            "2026-11-30",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
        ),
    )
    bad = """
topology for_the_runtime {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  features coreml_llm
  kv {
    sliding: write shift
    full:    write blend
  }
  chunk chunk1 = ple + L0-7
  chunk chunk2 = L8-14
  chunk chunk3 = L15-24
  chunk chunk4 = L25-34 + norm + head(argmax)
}
"""
    good = """
topology for_any_host {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  kv {
    sliding: write shift
    full:    write blend
  }
  chunk chunk1 = ple + L0-7
  chunk chunk2 = L8-14
  chunk chunk3 = L15-24
  chunk chunk4 = L25-34 + norm + head(argmax)
}
"""

    bad_mil = """
main(x: fp16[1,64], indicator: fp16[1,1]) {
  indicator_tmp: fp16[1,1] = identity(x=indicator)
  y: fp16[1,64] = exp(x=x)
  return y
}
"""
    good_mil = """
main(x: fp16[1,64], indicator: fp16[1,1]) {
  y: fp16[1,64] = mul(x=x, y=indicator)
  return y
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        topology = subject.topology
        if topology.features != COREML_LLM:
            return
        fed = _reads(subject, range(len(topology.blocks)))
        for chunk in topology.chunks:
            read = _reads(subject, chunk.layers)
            dead = [name for name in fed if name not in read]
            if dead:
                count = "an input" if len(dead) == 1 else f"{len(dead)} inputs"
                message = f"`{chunk.name}` takes {count} that only `coreml_llm` asks for"
                help_ = "`features topoc` leaves out what nothing reads"
                at = chunk.span or subject.whole
                yield self.flag(at, message, ", ".join(dead), chunk=chunk.name, help=help_)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_function

        for function in subject.package.functions:
            for one in function.inputs:
                if _is_dead(function, one.name):
                    message = f"nothing is computed from input `{one.name}`"
                    way = "leave it out, unless the runtime that feeds it insists"
                    yield at_function(self, subject, function, message, part=one.name, help=way)


def _is_dead(function: "Function", name: str) -> bool:
    """Whether no op computes with a value, no block gives it, and no output is a view of it."""
    from topoc.dsl.lint.trace import CASTS, readers

    given = {*function.outputs, *(o for op in function.ops for b in op.blocks for o in b.outputs)}
    reached = (one for one in (name, *_names(function, name)))
    return not given.intersection(reached) and not any(readers(function, name, CASTS))


def _names(function: "Function", name: str) -> Iterator[str]:
    from topoc.dsl.lint.trace import CASTS

    for op in function.readers(name):
        if op.kind in CASTS:
            yield from (one.name for one in op.outputs)


def _reads(subject: Subject, layers: range | tuple[int, ...]) -> list[str]:
    """The inputs of a decode step, of those that all chunks are fed, which these layers read."""
    blocks = [subject.topology.blocks[index] for index in layers]
    kinds = {subject.layer(block.index).kind.value for block in blocks}
    names = [
        name.format(kind=kind, letter=kind[0])
        for kind in ("full", "sliding")
        for name in ("causal_mask_{kind}", "cos_{letter}", "sin_{letter}")
        if kind in kinds
    ]
    blends = any(block.kv.donor is None and block.kv.write is Write.BLEND for block in blocks)
    decodes = any(one.role == "decode" for one in subject.topology.functions)
    return [*names, "update_mask"] if blends and decodes else names
