"""A table or a gain that was compressed with the weights."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.weights import PRODUCTS, users


class CompressedTable(Rule):
    """Only the weights of products are compressed.

    A setting for the whole model also takes rotary tables, masks, gains of norms and embeddings.
    A mask of -1e4 then comes out as another number, one of -infinity stops the clustering, angles
    turn by a little, and an embedding of 4 bits flipped a third of all tokens.
    """

    remedy = "Name the weights that are compressed, and leave tables as they are."
    error_texts = ("Input X contains infinity or a value too large for dtype('float64').",)
    evidence = (
        Evidence(
            "a global setting makes palettes of a rotary table and of a mask",
            "coremltools 9.0, palettize_weights; apple/ml-stable-diffusion#246",
            "2026-11-30",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
        ),
        Evidence(
            "per-layer embeddings of 4 bits flip the argmax, whatever the group",
            "CoreML-LLM docs/PLE_INT4_PROBE.md:156-166",
            "2026-04",
            Trust.MEASURED,
            figure="35 % of tokens",
        ),
    )
    bad_mil = """
main(x: fp16[1,128], position: int32[1]) {
  table: fp16[2048,128] = constexpr_lut_to_dense(indices=uint4[2048,128], lut=fp16[1,1,16,1])
  row: fp16[1,128] = gather(x=table, indices=position, axis=0)
  y: fp16[1,128] = mul(x=x, y=row)
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

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            found: dict[tuple[str, str], list[Op]] = {}
            for op in function.ops:
                if op.kind.startswith("constexpr_"):
                    for use in _misused(function, op):
                        found.setdefault(use, []).append(op)
            for (key, kind), ops in found.items():
                message = f"a compressed constant is `{key}` of `{kind}`, not a weight of a product"
                way = "exclude it from compression by name"
                yield at_ops(self, subject, function, ops, message, help=way)


def _misused(function: Function, op: Op) -> Iterator[tuple[str, str]]:
    """What a compressed constant is used for besides products: parameter and type of op."""
    for key, user in users(function, op):
        if user.kind not in PRODUCTS and not user.constant:
            yield key, user.kind
