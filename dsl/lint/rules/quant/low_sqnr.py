"""A compressed tensor that is far from what it was."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.checkpoint import Checkpoint
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust

LEAST = 15.0  # dB; the best 16 levels of normal numbers keep 20.2, the best 8 keep 14.6


class LowSqnr(Rule):
    """A tensor whose compression leaves too little signal is worth more bits.

    The ratio of signal to quantisation noise is known as soon as a tensor is compressed. Four bits
    over numbers that are normally distributed keep 20 dB; what falls to what three bits would give
    is an outlier, and a rule for that tensor alone costs few bytes.
    """

    severity = Severity.WARNING
    evidence = (
        Evidence(
            "the best 16 levels for normal numbers keep 20.2 dB, the best 8 keep 14.6 dB",
            "J. Max, Quantizing for Minimum Distortion, IRE Transactions on Information Theory 6",
            "1960-03",
            Trust.REPORTED,
            figure="mean square errors of 0.0095 and 0.0345",
        ),
        Evidence(
            "models that are fine with 8 bits fail with 4, and which tensors are to blame differs",
            "CoreML-LLM docs/QWEN3VL_2B_INT6.md:77-104",
            "2026-05",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac M4, Qwen3-VL 2B",
            figure="greedy tokens that agree: 62.5 % at 8 bits, 25.8 % at 6, 1.3 % at 4",
        ),
    )
    remedy = "Give the tensor more bits or smaller groups by a rule of its own."
    bad_checkpoint = """
tensor layers.0.down shape 640x2048 sqnr 9.5
"""
    good_checkpoint = """
tensor layers.0.down shape 640x2048 sqnr 20.3
"""

    def _check_checkpoint(self, subject: Checkpoint) -> Iterator[Finding]:
        for tensor in subject.tensors:
            if tensor.sqnr is not None and tensor.sqnr < LEAST:
                message = f"`{tensor.name}` keeps {tensor.sqnr:.1f} dB after compression"
                words = f"below {LEAST:g} dB; four bits over normal numbers keep 20"
                help_ = "give it more bits, or smaller groups, by a rule of its own"
                place = tensor.span or subject.place(tensor.name)
                yield self.flag(place, message, words, help=help_)
