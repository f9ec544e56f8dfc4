"""A residual stream that fp16 can't hold."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.checkpoint import Checkpoint, Stream
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust

LARGEST = 65_504.0  # of fp16
ROOM = 2.0  # what was measured on a few tokens may be exceeded on others


class ResidualOverflow(Rule):
    """The residual stream stays within fp16 in every layer, with room to spare.

    Gemma 3 scales what its layers add by gains of hundreds. The stream passes 65,504 after a few
    layers, becomes infinite, and the text is noise. Gemma 4 stays below 200. A power of two that
    divides the embedding and the gains keeps the numbers and the range; topoc compiles with it.
    """

    evidence = (
        Evidence(
            "the stream of Gemma 3 270M passes fp16 in layer 7",
            "CoreML-LLM conversion/models/gemma3_wrapper.py:80-86",
            "2026-05",
            Trust.MEASURED,
            device="CPU, Gemma 3 270M",
            figure="about 100,000; the first value that is not finite stands in layer 7",
        ),
        Evidence(
            "the stream of Gemma 4 stays small, so that a scale gains nothing there",
            "CoreML-LLM docs/SESSION_2026_04_25_RESIDUAL.md:31-56",
            "2026-04-25",
            Trust.MEASURED,
            device="CPU, Gemma 4 E2B and E4B",
            figure="135 and 161",
        ),
    )
    remedy = "Compile with the exact rescale, which is the default; begin prompts with BOS."
    bad_checkpoint = """
stream 6 peak 41000
stream 7 peak 100000
"""
    good_checkpoint = """
stream 6 peak 41000  scale 0.0625
stream 7 peak 100000 scale 0.0625
"""

    def _check_checkpoint(self, subject: Checkpoint) -> Iterator[Finding]:
        over = [one for one in subject.streams if _held(one) > LARGEST]
        near = [one for one in subject.streams if LARGEST / ROOM < _held(one) <= LARGEST]
        if over:
            yield self._swing(subject, over[0], "fp16 can't hold that", Severity.ERROR)
        elif near:
            worst = max(near, key=_held)
            yield self._swing(subject, worst, "more than half of fp16", Severity.WARNING)
        if subject.streams and not subject.starts_with_bos:
            message = "the stream was measured on a prompt without BOS, where it swings most"
            help_ = "begin the prompt with the model's BOS token"
            at = subject.place("calibration")
            yield self.flag(at, message, severity=Severity.WARNING, help=help_)

    def _swing(
        self, subject: Checkpoint, stream: Stream, words: str, severity: Severity
    ) -> Finding:
        message = f"the residual stream reaches {_held(stream):,.0f} before layer {stream.layer}"
        help_ = "compile with the exact rescale, which divides it by a power of two"
        at = subject.place(f"layer {stream.layer}")
        return self.flag(at, message, words, severity=severity, help=help_)


def _held(stream: Stream) -> float:
    """The greatest value that the device has to hold."""
    return stream.peak * stream.scale
