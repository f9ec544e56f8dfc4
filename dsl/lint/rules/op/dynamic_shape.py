"""A shape that is known only when the model runs."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_function, at_ops
from topoc.dsl.lint.mil import FLEXIBLE, Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil


class DynamicShape(Rule):
    """Every shape of a program for the Neural Engine is fixed.

    Inputs whose sizes are ranges keep a whole program off the Neural Engine, and the runtime's
    newer engine refuses them outright. An op that finds out its result's size while it runs, as
    `non_zero` does, has the same effect on all that follows.
    """

    placement = True
    remedy = "Fix the size, and build one function for each size that is needed."
    error_texts = (
        "MLE5Engine is not currently supported for models with range shape inputs",
        "A model doesn't allow a mixture of enumerated and range shape flexibility",
    )
    evidence = (
        Evidence(
            "the newer engine refuses inputs of range shape on the Neural Engine",
            "apple/coremltools#1029",
            "2023-04",
            Trust.REPORTED,
        ),
        Evidence(
            "flexible dimensions run off the Neural Engine",
            "CoreML-LLM docs/EMBEDDINGGEMMA.md:51-63 and docs/SPEED_8K.md:29",
            "2026-04",
            Trust.REPORTED,
            device="iPhone 17 Pro, iOS 26",
        ),
    )
    bad_mil = """
main(x: fp16[1,?,64]) {
  y: fp16[1,?,64] = relu(x=x)
  return y
}
"""
    good_mil = """
main(x: fp16[1,16,64]) {
  y: fp16[1,16,64] = relu(x=x)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            flexible = [one for one in function.inputs if one.flexible]
            for one in flexible:
                sizes = {"enumerated": "several sizes"}.get(one.flexible, "a size that may vary")
                message = f"input `{one.name}` takes {sizes}, which the Neural Engine does not run"
                way = "fix its shape, and add a function for each size that is needed"
                yield at_function(self, subject, function, message, part=one.name, help=way)
            made = [] if flexible else list(_makers(function))
            if made:
                message = f"`{made[0].kind}` gives a shape that is known only when it has run"
                way = "write it with shapes that are fixed: a mask in place of a selection"
                yield at_ops(self, subject, function, made[:1], message, help=way)


def _makers(function: Function) -> Iterator[Op]:
    """The ops that make a flexible shape of fixed ones."""
    for op in function.compute:
        fixed = all(FLEXIBLE not in function.type_of(name).shape for name in op.names)
        if fixed and any(FLEXIBLE in one.type.shape for one in op.outputs):
            yield op
