"""A tensor of more than five axes."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_function, at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil

AXES = 5


class RankOver5(Rule):
    """No tensor has more than five axes.

    coremltools refuses six. What reaches a phone by other ways is worse: a program that cut an
    image into patches with ten axes crashed while it was loaded, where a Mac had run it.
    """

    remedy = "Split the reshape into steps of at most five axes, or let the host do it."
    error_texts = ("Core ML only supports tensors with rank <= 5.", "EXC_BAD_ACCESS")
    evidence = (
        Evidence(
            "a view and permute of ten axes crash the phone while it loads the model",
            "CoreML-LLM conversion/build_qwen3_vl_2b_vision.py:137-150",
            "2026-04",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="A18 Pro, iOS 26",
        ),
        Evidence(
            "the converter refuses a tensor of six axes",
            "FluidInference/mobius#67",
            "2026-01",
            Trust.REPORTED,
        ),
    )
    bad_mil = """
main(x: fp16[1,64,4,4]) {
  y: fp16[1,8,8,2,2,4] = reshape(x=x, shape=[1, 8, 8, 2, 2, 4])
  z: fp16[1,8,8,16] = reshape(x=y, shape=[1, 8, 8, 16])
  return z
}
"""
    good_mil = """
main(x: fp16[1,64,4,4]) {
  y: fp16[8,8,2,2,4] = reshape(x=x, shape=[8, 8, 2, 2, 4])
  z: fp16[1,8,8,16] = reshape(x=y, shape=[1, 8, 8, 16])
  return z
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            for one in (*function.inputs, *function.states):
                if one.type.rank > AXES:
                    message = f"`{one.name}` has {one.type.rank} axes, and Core ML knows {AXES}"
                    way = "merge axes on the host before it is passed"
                    yield at_function(self, subject, function, message, part=one.name, help=way)
            wide = [
                op for op in function.compute if any(one.type.rank > AXES for one in op.outputs)
            ]
            if wide:
                rank = max(one.type.rank for op in wide for one in op.outputs)
                message = f"`{wide[0].kind}` gives {rank} axes, and Core ML knows {AXES}"
                way = "reshape in steps of at most five axes, or let the host do it"
                yield at_ops(self, subject, function, wide, message, help=way)
