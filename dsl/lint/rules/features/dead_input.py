"""Inputs that a chunk takes for its host alone."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.model import Write


class DeadInput(Rule):
    """Under `features coreml_llm` a chunk takes inputs that nothing in it reads.

    The runtime behind that profile feeds both masks, all angles and the write mask to every chunk,
    and fails where one of them is not declared. So a chunk without an owner that blends takes the
    write mask all the same, and a chunk with one kind of layer the mask and the angles of the
    other. Each goes through an identity and ends there: it costs the host its filling, and the
    chunk nothing else.
    """

    severity = Severity.NOTE
    evidence = (
        Evidence(
            "chunks 3 and 4 declare `update_mask`, and no op of theirs reads it",
            "CoreML-LLM conversion/models/gemma4_swa_chunks.py:413-430 (72178c6)",
            "2026-05-06",
            Trust.REPORTED,
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

    def _check(self, subject: Subject) -> Iterator[Finding]:
        topology = subject.topology
        if topology.features != "coreml_llm":
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
