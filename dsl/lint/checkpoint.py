"""Plain views of a checkpoint: what was measured in its tensors and in its residual stream.

Lowering fills them while it reads and compresses the weights; rules ask them questions.
"""

from attrs import frozen

from topoc.dsl.diagnostic import Place
from topoc.dsl.plain import Plain
from topoc.dsl.source import Span


@frozen(kw_only=True, eq=False, repr=False)
class Tensor(Plain):
    """One tensor that a scheme compresses, or would."""

    name: str
    shape: tuple[int, ...]
    scheme: str = ""  # as a topology writes it
    group: int | None = None  # how many channels share a palette, or a scale
    axis: int = 0  # the axis that the groups divide
    sqnr: float | None = None  # dB, once compressed
    span: Span | None = None  # the rule that chose the scheme


@frozen(kw_only=True, eq=False, repr=False)
class Stream(Plain):
    """The residual stream where it enters a layer, or leaves the last: the greatest |x|."""

    layer: int
    peak: float  # by the checkpoint
    scale: float = 1.0  # of what is held on the device


@frozen(kw_only=True, eq=False, repr=False)
class Checkpoint(Plain):
    """A checkpoint as one topology uses it; `path` is how people know it."""

    path: str
    tensors: tuple[Tensor, ...] = ()
    streams: tuple[Stream, ...] = ()
    starts_with_bos: bool = True  # whether the prompt that was measured did

    def place(self, part: str) -> Place:
        """Where a tensor or a layer stands."""
        return Place(self.path, part)
