"""An axis that is longer than some say the Neural Engine takes."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Op, Tensor
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil

SPATIAL, CHANNELS = 16_384, 65_536


class WideAxis(Rule):
    """Some say that the Neural Engine takes 16,384 along height and width, and 65,536 channels.

    Those who drive it without Core ML met these limits. A head of one convolution to 262,144
    channels ran on it through Core ML, and was faster than sixteen of 16,384: do not split for
    this note alone.
    """

    severity = Severity.NOTE
    placement = True
    remedy = "Measure on a device before splitting anything."
    evidence = (
        Evidence(
            "16,384 along an axis pass and 17,920 fail, without Core ML",
            "ncdrone/rustane#13",
            "2026-02",
            Trust.REPORTED,
        ),
        Evidence(
            "a vocabulary of 151,936 is beyond a limit of 65,536, without Core ML",
            "maderix/ANE#26",
            "2026-02",
            Trust.REPORTED,
        ),
        Evidence(
            "a 1x1 convolution from 2304 to 262,144 channels runs on the Neural Engine",
            "CoreML-LLM docs/SESSION_2026_04_28_LMSPLIT_FINALISE.md:49-57",
            "2026-04-28",
            Trust.CONTESTED,
            device="iPhone 17 Pro, iOS 26",
        ),
    )
    bad_mil = """
main(x: fp16[1,64,1,1]) {
  y: fp16[1,65537,1,1] = conv(x=x, weight=fp16[65537,64,1,1])
  return y
}
"""
    good_mil = """
main(x: fp16[1,64,1,16384]) {
  y: fp16[1,65536,1,16384] = conv(x=x, weight=fp16[65536,64,1,1])
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.compute if _excess(one)]
            if ops:
                size, limit = _excess(ops[0])
                message = f"an axis of {size:,} is beyond {limit:,}, which some call the limit"
                way = "measure on a device before splitting anything"
                yield at_ops(self, subject, function, ops, message, help=way)


def _excess(op: Op) -> tuple[int, ...]:
    """An axis that is too long by some accounts, and the limit; nothing if none is."""
    return next((pair for one in op.outputs for pair in _beyond(one.type)), ())


def _beyond(kind: Tensor) -> Iterator[tuple[int, int]]:
    """In four axes the second are channels; in fewer, the last is a width."""
    sizes = kind.shape
    if kind.rank >= 4 and sizes[-3] > CHANNELS:
        yield sizes[-3], CHANNELS
    for size in sizes[-2:] if kind.rank >= 4 else sizes[-1:]:
        if size > SPATIAL:
            yield size, SPATIAL
