"""What a picture shows, as data: layers in chunks, the KV that they share, findings in place."""

from attrs import frozen

from topoc.dsl.diagnostic import Diagnostic
from topoc.dsl.plain import Plain
from topoc.lowering.cli.milliseconds import Ms


@frozen(kw_only=True, eq=False, repr=False)
class Line(Plain):
    """A line of a `.topo` file."""

    place: str  # file:line
    text: str


@frozen(kw_only=True, eq=False, repr=False)
class Finding(Plain):
    """A finding, its line, and what in the picture it is about."""

    number: int
    diagnostic: Diagnostic
    line: Line
    about: tuple[str, ...] = ()  # in words: chunk chunk3, L15-34, …


@frozen(kw_only=True, eq=False, repr=False)
class Layer(Plain):
    """One layer as the topology runs it; all bytes are plain counts."""

    index: int
    attention: str  # its kind: sliding, full, …
    detail: str  # the kind with its arguments
    seen: int  # positions that a query sees
    donor: int | None  # whose KV it reads
    kept: tuple[str, ...]  # how its own KV is kept, or whose it reads, in words
    stored_bytes: int
    cache_bytes: int
    lines: tuple[Line, ...]
    findings: tuple[Finding, ...] = ()
    changed: bool = False


@frozen(kw_only=True, eq=False, repr=False)
class Run(Plain):
    """One function of a chunk; KV and ms are those of a call."""

    function: str
    unit: str
    tokens: int
    ms: Ms | None
    kv_bytes_in: int
    kv_bytes_out: int


@frozen(kw_only=True, eq=False, repr=False)
class Chunk(Plain):
    """What lies between two walls."""

    name: str
    holds: str
    layers: tuple[Layer, ...]
    stored_bytes: int
    loaded_bytes: int
    runs: tuple[Run, ...]
    lines: tuple[Line, ...]
    findings: tuple[Finding, ...] = ()


@frozen(kw_only=True, eq=False, repr=False)
class Arrow(Plain):
    """KV of one layer that another reads, from the chunk of the one to that of the other."""

    donor: int
    reader: int
    source: str
    chunk: str
    bytes: int
    lines: tuple[Line, ...]

    @property
    def crosses(self) -> bool:
        """Whether it goes through a chunk's wall."""
        return self.source != self.chunk


@frozen(kw_only=True, eq=False, repr=False)
class Crossing(Plain):
    """All shared KV of one layer that enters a chunk in one call, or leaves its own."""

    donor: int
    chunk: str
    bytes: int


@frozen(kw_only=True, eq=False, repr=False)
class Picture(Plain):
    """One chunk list: its functions, the first of which its arrows and walls are drawn for."""

    functions: tuple[str, ...]
    context: int
    chunks: tuple[Chunk, ...]
    arrows: tuple[Arrow, ...]
    crossings: tuple[Crossing, ...]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of all its chunks."""
        return tuple(layer for chunk in self.chunks for layer in chunk.layers)
