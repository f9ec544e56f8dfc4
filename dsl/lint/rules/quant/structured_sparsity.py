"""Weights of which so many in so many are zero."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.gather import by_recipe
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject


class StructuredSparsity(Rule):
    """Pruning by a pattern makes a package larger, slower and wrong.

    The engine skips no zeros, the sparse form together with a palette takes more bytes than the
    palette alone, and without training what is left does not answer as the model did.
    """

    placement = True
    evidence = (
        Evidence(
            "two of four weights pruned, with palettes of 4 bits: worse on every axis",
            "CoreML-LLM docs/SESSION_2026_04_27_ROUND8_JOINT_SPARSE_PROBE.md:26-54",
            "2026-04-27",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac",
            figure="155.8 to 349.6 MB, 5.12 to 5.69 ms, cosine 0.449",
        ),
    )
    remedy = "Leave out `prune`."
    bad = """
topology two_of_four {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize { weights: prune(n = 2, m = 4) + palettize(bits = 4, group = 32) }
}
"""
    good = """
topology dense {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize { weights: palettize(bits = 4, group = 32) }
}
"""
    bad_mil = """
main(x: fp16[1,128]) {
  mask: uint1[64,128], some: fp16[4096] = constexpr_lut_to_sparse(
    indices_mask=uint1[64,128], indices_nonzero_data=uint4[4096], lut=fp16[1,1,16,1]
  )
  w: fp16[64,128] = constexpr_sparse_to_dense(nonzero_data=some, mask=mask)
  y: fp16[1,64] = linear(x=x, weight=w)
  return y
}
"""
    good_mil = """
main(x: fp16[1,128]) {
  w: fp16[64,128] = constexpr_lut_to_dense(indices=uint4[64,128], lut=fp16[1,1,16,1])
  y: fp16[1,64] = linear(x=x, weight=w)
  return y
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        faulty = (
            recipe
            for recipe in subject.recipes()
            if any(one.name == "prune" for one in recipe.schemes)
        )
        for span, tensors in by_recipe(subject, faulty):
            message = (
                f"pruning gains nothing on the Neural Engine and costs the answers ({tensors})"
            )
            words = "124 % more bytes, 11 % slower, cosine 0.449"
            yield self.flag(span, message, words, help="leave out `prune`")

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_ops
        from topoc.dsl.lint.weights import SPARSE, SPARSE_PALETTE, SPARSE_SCALED

        for function in subject.package.functions:
            joint = list(function.of(SPARSE_PALETTE, SPARSE_SCALED))
            alone = [] if joint else list(function.of(SPARSE))
            if joint:
                message = "weights are sparse and compressed at once, which made all of it worse"
                way = "leave out the pruning"
                yield at_ops(self, subject, function, joint, message, help=way)
            if alone:
                message = "weights are sparse, and the Neural Engine skips no zeros"
                way = "leave out the pruning, unless the bytes on disk are what counts"
                severity = Severity.WARNING
                yield at_ops(self, subject, function, alone, message, help=way, severity=severity)
