"""The rules on checkpoints, asked of a residual stream that was just measured."""

from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

from topoc.dsl.diagnostic import Severity, TopocError
from topoc.dsl.lint.checkpoint import Checkpoint, Stream
from topoc.dsl.lint.engine import Subjects, examine
from topoc.lowering.manifest import Lint
from topoc.lowering.rescale import Range, Scales


def streams_checked(lint: Lint, path: Path, ranges: Sequence[Range], scales: Scales) -> Lint:
    """What the rules say with these scales, added to what they said before.

    Raises TopocError where fp16 can't hold the stream and nobody has accepted that.
    """
    pairs = zip(ranges, scales.residual, strict=True)
    streams = (
        Stream(layer=at, peak=max(one.stream.peak, one.left), scale=scale)
        for at, (one, scale) in enumerate(pairs)
    )
    report = examine(Subjects(checkpoint=Checkpoint(path=str(path), streams=tuple(streams))))
    allowed = {one.code for one in lint.allowed}
    found = [one for one in report.findings if one.code not in allowed]
    stopping = [one for one in found if one.severity is Severity.ERROR]
    if stopping:
        raise TopocError(*stopping)
    warned = {one.code for one in found if one.severity is Severity.WARNING}
    return evolve(
        lint,
        ran=tuple(sorted({*lint.ran, *report.ran})),
        warned=tuple(sorted({*lint.warned, *warned})),
    )
