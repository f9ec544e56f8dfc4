"""A convolution with a group for each channel."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import is_depthwise


class DepthwiseConv(Rule):
    """A window over each channel by itself is a product and a sum.

    Ten depthwise convolutions of 1024 channels left the Neural Engine and cost 5 ms each. In
    another model three of them, with a wider kernel, stayed: a device has to say.
    """

    severity = Severity.WARNING
    placement = True
    remedy = "Over a small window, multiply by the taps and add with `reduce_sum`."
    evidence = (
        Evidence(
            "ten convolutions with groups = channels = 1024 and kernel (1, 3) run on the CPU",
            "CoreML-LLM docs/LFM2_CONVERSION_FINDINGS.md:142-161",
            "2026-04-28",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac, macOS 26.0.1",
            figure="about 5 ms each",
        ),
        Evidence(
            "three convolutions of this sort with 4 taps stay on the Neural Engine",
            "CoreML-LLM docs/QWEN35_ROADMAP.md:37,130-133",
            "2026-04",
            Trust.CONTESTED,
            device="Mac",
        ),
    )
    bad_mil = """
main(x: fp16[1,1024,1,3]) {
  y: fp16[1,1024,1,1] = conv(x=x, weight=fp16[1024,1,1,3], groups=1024)
  return y
}
"""
    good_mil = """
main(x: fp16[1,1024,1,3]) {
  taps: fp16[1,1024,1,3] = const()
  weighed: fp16[1,1024,1,3] = mul(x=x, y=taps)
  y: fp16[1,1024,1,1] = reduce_sum(x=weighed, axes=[3], keep_dims=true)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.of("conv") if is_depthwise(function, one)]
            if ops:
                channels = ops[0].type.shape[1]
                message = f"a convolution in {channels} groups, one a channel, was seen on the CPU"
                way = "multiply by the taps and add with `reduce_sum`"
                yield at_ops(self, subject, function, ops, message, help=way)
