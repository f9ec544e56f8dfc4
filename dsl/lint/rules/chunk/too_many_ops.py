"""More operations than a compiler on the device was seen to take."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_function
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil


class TooManyOps(Rule):
    """A function holds no more operations than its compiler takes.

    Functions of about a thousand operations ran. One of 16,243 did not compile. Where between the
    two the limit lies, nobody tried. Constants don't count, compressed weights among them.
    """

    severity = Severity.WARNING
    placement = True
    remedy = "Split the program into more chunks."
    error_texts = ("E5RT MILCompilerForANE Error=(11)",)
    evidence = (
        Evidence(
            "a graph with too many operations or intermediates ends in error 11",
            "CoreML-LLM docs/MLSTATE_PATTERN.md:131",
            "2026-04-28",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="iPhone 17 Pro, iOS 26",
        ),
        Evidence(
            "a graph of 16,243 operations is left to the GPU",
            "CoreML-LLM docs/KICKOFF_S0.md:30-36",
            "2026-04",
            Trust.REPORTED,
        ),
    )

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        limit = subject.profile.limit("ops per chunk")
        for function in subject.package.functions:
            count = len(function.compute)
            if limit.rank(count) is not None:
                message = f"`{function.name}` has {count:,} operations, and 1,058 were seen to run"
                way = "split the program into more chunks"
                yield at_function(self, subject, function, message, help=way)
