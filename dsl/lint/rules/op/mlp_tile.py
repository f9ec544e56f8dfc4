"""An MLP over tokens that were laid out as a tile."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil

TILE = (8, 8)


class MlpTile(Rule):
    """An MLP reads its tokens along one axis.

    Three changes went to a phone together and cost it five sixths of its speed: MLPs over tiles of
    8 by 8, `exp2` in softmax, and grouped heads by a broadcast over five axes. Which of the three
    did it was never found out, so that each of them is an error.
    """

    placement = True
    remedy = "Leave the tokens on the last axis: (1, channels, 1, tokens)."
    evidence = (
        Evidence(
            "a build with tiled MLPs, `exp2` and a broadcast over five axes ran on the Neural"
            " Engine to 80 %; the culprit of the three was never isolated",
            "CoreML-LLM docs/PRIORITY_ROADMAP.md:79-88,265",
            "2026-04-14",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="iPhone 17 Pro, iOS 26",
            figure="15.0 -> 2.7 tok/s",
        ),
    )
    bad_mil = """
main(x: fp16[1,64,1,64]) {
  tile: fp16[1,64,8,8] = reshape(x=x, shape=[1, 64, 8, 8])
  y: fp16[1,256,8,8] = conv(x=tile, weight=fp16[256,64,1,1])
  return y
}
"""
    good_mil = """
main(x: fp16[1,64,1,64]) {
  y: fp16[1,256,1,64] = conv(x=x, weight=fp16[256,64,1,1])
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.of("conv") if _is_tiled(function, one)]
            if ops:
                message = "an MLP reads tokens as a tile of 8 by 8, one of three suspects"
                way = "leave the tokens on the last axis"
                yield at_ops(self, subject, function, ops, message, help=way)


def _is_tiled(function: Function, conv: Op) -> bool:
    """A convolution of one point over what a reshape made 8 by 8."""
    maker = function.maker(conv.operand("x"))
    point = function.type_of(conv.operand("weight")).shape[2:] == (1, 1)
    return point and maker is not None and maker.kind == "reshape" and maker.type.shape[2:] == TILE
