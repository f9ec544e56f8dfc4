"""A look-up of embeddings inside a chunk for the Neural Engine."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject

if TYPE_CHECKING:
    from topoc.dsl.lint.mil import Function, Op


class EmbeddingGather(Rule):
    """Embedding rows are looked up by the host.

    A gather in the graph runs on the CPU, keeps the whole table resident in fp16, and cuts the
    chunk where it stands. A mapped table of bytes on the host needs none of that.
    """

    severity = Severity.WARNING
    placement = True
    evidence = (
        Evidence(
            "gathers stay on the CPU",
            "CoreML-LLM docs/BENCHMARKING.md:57",
            "2026-04-24",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro",
            figure="16 of 7,310 ops",
        ),
        Evidence(
            "a table in the graph is resident as a whole; a mapped one is not",
            "CoreML-LLM docs/RELEASE_v1_1_0.md:19-22",
            "2026-04-28",
            Trust.MEASURED,
            device="iPhone 17 Pro, Qwen3.5 2B",
            figure="1 GB against about 200 MB for the process",
        ),
    )
    remedy = "Leave out the part `embed`."
    bad = """
topology looks_up_in_the_graph {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = embed + L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    good = """
topology looks_up_on_the_host {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    bad_mil = """
main(token: int32[1]) {
  table: fp16[32000,64] = const()
  row: fp16[1,64] = gather(x=table, indices=token, axis=0)
  y: fp16[1,64] = mul(x=row, y=8.0)
  return y
}
"""
    good_mil = """
main(row: fp16[1,64]) {
  y: fp16[1,64] = mul(x=row, y=8.0)
  return y
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for chunk, _ in subject.placed():
            for part in chunk.parts:
                if part.kind == "embed":
                    message = f"`{chunk.name}` looks embeddings up in the graph"
                    words = "a gather, which the CPU runs"
                    help_ = "leave out `embed`, and the host looks the rows up"
                    span = part.span or subject.whole
                    yield self.flag(span, message, words, chunk=chunk.name, help=help_)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_ops

        for function in subject.package.functions:
            ops = [one for one in function.of("gather") if _is_embedding(function, one)]
            if ops:
                rows, width = function.type_of(ops[0].operand("x")).shape
                message = f"rows of a table of {rows:,} x {width:,} are looked up in the graph"
                way = "look the rows up on the host, and pass them in"
                yield at_ops(self, subject, function, ops, message, help=way)


def _is_embedding(function: "Function", gather: "Op") -> bool:
    """A look-up of rows that are not angles."""
    from topoc.dsl.lint.trace import is_angle_lookup, is_lookup

    return is_lookup(function, gather) and not is_angle_lookup(function, gather)
