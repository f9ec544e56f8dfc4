"""What was written, and where: the tree of a `.topo` file.

Two nodes are equal when they were written alike; places never count.
"""

from attrs import field, frozen

from topoc.dsl.plain import Plain
from topoc.dsl.source import Span


@frozen(kw_only=True, eq=False, repr=False)
class Node(Plain):
    """Anything that was written."""

    span: Span = field(eq=False, repr=False)


@frozen(eq=False, repr=False)
class Word(Node):
    """A bare word: a name, a kind, a parameter."""

    text: str

    def __str__(self) -> str:
        return self.text


@frozen(eq=False, repr=False)
class Text(Node):
    """A quoted text, unescaped."""

    text: str


@frozen(eq=False, repr=False)
class Number(Node):
    """A number and its unit, as written."""

    value: float
    unit: str = ""


@frozen(eq=False, repr=False)
class Range(Node):
    """Layers `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"L{self.first}" if self.first == self.last else f"L{self.first}-{self.last}"


@frozen(eq=False, repr=False)
class Items(Node):
    """A bracketed list of values."""

    items: "tuple[Value, ...]"


Value = Word | Text | Number | Range | Items


@frozen(eq=False, repr=False)
class Argument(Node):
    """One argument of a call, named or not."""

    name: str | None
    value: Value


@frozen(eq=False, repr=False)
class Call(Node):
    """A word with arguments, or without."""

    name: str
    arguments: tuple[Argument, ...] = ()


@frozen(eq=False, repr=False)
class Group(Node):
    """Selector words of one class, united by commas."""

    items: tuple[Range | Word, ...]


@frozen(eq=False, repr=False)
class Clause(Node):
    """A property and what it is set to: `share L13`, `write shift`."""

    property: str
    operand: Range | Call


@frozen(eq=False, repr=False)
class Stack(Node):
    """One scheme or kind, or several joined by `+`."""

    calls: tuple[Call, ...]


Setting = Clause | Stack


@frozen(eq=False, repr=False)
class Rule(Node):
    """A selector (groups intersect) and its settings."""

    groups: tuple[Group, ...]
    settings: tuple[Setting, ...]


@frozen(eq=False, repr=False)
class Budget(Node):
    """One line of `expect`."""

    measure: str
    relation: str
    value: Value


@frozen(eq=False, repr=False)
class Entry(Node):
    """One line of a record: its words and the value."""

    key: tuple[str, ...]
    value: Text | Number


@frozen(eq=False, repr=False)
class Record(Node):
    """The lines between the braces of `status` or `measured`."""

    entries: tuple[Entry, ...]


@frozen(eq=False, repr=False)
class Doc(Node):
    """`doc TEXT`."""

    text: Text


@frozen(eq=False, repr=False)
class Model(Node):
    """`model TEXT`."""

    path: Text


@frozen(eq=False, repr=False)
class Target(Node):
    """`target UNIT [DEPLOY] [CHIP]`."""

    words: tuple[Word, ...]


@frozen(eq=False, repr=False)
class Context(Node):
    """`context N`."""

    value: Value


@frozen(eq=False, repr=False)
class Param(Node):
    """`param NAME = NUMBER`."""

    name: Word
    value: Number


@frozen(eq=False, repr=False)
class Features(Node):
    """`features PROFILE`."""

    profile: Word


@frozen(eq=False, repr=False)
class Chunk(Node):
    """`chunk NAME = PART + …`."""

    call: Call
    parts: tuple[Range | Call, ...]


@frozen(eq=False, repr=False)
class Tap(Node):
    """`tap L8, L17`."""

    layers: tuple[Range, ...]


@frozen(eq=False, repr=False)
class Functions(Node):
    """`functions F, F(…)`."""

    calls: tuple[Call, ...]


@frozen(eq=False, repr=False)
class Allow(Node):
    """`allow CODE [in CHUNK] because TEXT`."""

    code: Word
    chunk: Word | None
    reason: Text


@frozen(eq=False, repr=False)
class Rules(Node):
    """An `attention`, `kv` or `quantize` block."""

    block: str
    rules: tuple[Rule, ...]


@frozen(eq=False, repr=False)
class Expect(Node):
    """An `expect` block."""

    budgets: tuple[Budget, ...]


@frozen(eq=False, repr=False)
class Status(Node):
    """`status STATE [on DATE] [{ … }]`."""

    state: Word
    date: str | None
    record: Record | None


@frozen(eq=False, repr=False)
class Measured(Node):
    """`measured on DATE { … }`."""

    date: str
    record: Record


@frozen(eq=False, repr=False)
class Broken(Node):
    """A statement that did not parse; its error was reported."""


Statement = (
    Doc
    | Model
    | Target
    | Context
    | Param
    | Features
    | Chunk
    | Tap
    | Functions
    | Allow
    | Rules
    | Expect
    | Status
    | Measured
)


@frozen(eq=False, repr=False)
class Topology(Node):
    """A topology, with the base it extends."""

    name: Word
    base: Word | Text | None
    statements: tuple[Statement, ...]


@frozen(eq=False, repr=False)
class Experiment(Node):
    """A ledger record for work that is not a graph."""

    name: Word
    statements: tuple[Statement, ...]


@frozen(eq=False, repr=False)
class File(Node):
    """Everything in one file, in order."""

    items: tuple[Topology | Experiment, ...]

    @property
    def topologies(self) -> tuple[Topology, ...]:
        """The topologies of the file, in order."""
        return tuple(item for item in self.items if isinstance(item, Topology))
