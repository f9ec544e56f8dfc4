"""Each different op once through coremltools' builder; the rest of a program repeats it.

A decoder has thousands of ops and some hundred different ones. How an op stands in a program
follows from its kind, the types of what it reads and its constants. The builder checks these, tells
the types of the results and gives the protobuf: a template, in which names and the places of
weights are open.
"""

from base64 import b64decode, b64encode
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from topoc.lowering.coreml_proto import mil
from topoc.lowering.emit.mil.direct import ARGUMENT, CONST, NAME, directly
from topoc.lowering.emit.mil.var import Signature, Type
from topoc.lowering.kept import Kept, name_of


@frozen
class Stencil:
    """One op of a template, and what is open in it."""

    op: Any = field(repr=False)  # the message
    suffix: str  # of its name, behind that of the whole
    results: tuple[int, ...]  # which of the template's they are
    names: tuple[tuple[str, int, int], ...]  # parameter, place in it, argument
    weights: tuple[tuple[str, int], ...]  # parameter, argument, in the order of arguments


@frozen
class Template:
    """What one op of the builder becomes, and the types of its results."""

    stencils: tuple[Stencil, ...]
    results: tuple[Type, ...]


Made = tuple[str, list[list[Any]]]
"""A template as JSON: the block in base 64, and types."""

MOST = 10_000
"""Templates that are kept: some MB."""


@define
class Templates:
    """Templates by what was asked for; those that were made before may be kept for later."""

    kept: Kept | None = None
    _known: dict[Signature, Template] = field(factory=dict)
    _made: dict[str, Made] | None = None  # by the names of signatures, as they are kept
    _more: bool = False  # than are kept

    def of(self, asked: Signature) -> Template:
        """The template of a signature; what MIL does not allow raises an error of coremltools."""
        if asked not in self._known:
            found = directly(asked)
            self._known[asked] = _template(*(found or self._told(asked)))
        return self._known[asked]

    def keep(self) -> None:
        """Keep what was made for later; where that can't be done, it is made again."""
        if self.kept is None or not self._more:
            return
        made = self._stored()
        if len(made) > MOST:  # of layouts that nobody compiles any more
            made = self._made = {}
        with suppress(OSError):  # it costs time alone
            self.kept.note(_name(), made, f"{len(made)} ops", "templates of MIL")
        self._more = False

    def _told(self, asked: Signature) -> tuple[Any, tuple[Type, ...]]:
        """What coremltools says, or said when it was asked before."""
        made, name = self._stored(), name_of(asked)
        if name not in made:
            made[name], self._more = _derived(asked), True
        encoded, results = made[name]
        types = tuple(Type(dtype, tuple(shape)) for dtype, shape in results)
        return mil().Block.FromString(b64decode(encoded)), types

    def _stored(self) -> dict[str, Made]:
        if self._made is None:
            self._made = {}
            with suppress(OSError):  # of a folder that can't be read nothing is known
                self._made = (self.kept and self.kept.fact(_name())) or {}
        return self._made


@cache
def _name() -> str:
    """What is kept is of one version of coremltools, and of the code that asks it."""
    sources = (
        Path(__file__).with_name(f"{one}.py") for one in ("derive", "direct", "toolkit", "var")
    )
    return name_of("templates", version("coremltools"), *(one.read_bytes() for one in sources))


@cache
def _derived(asked: Signature) -> Made:
    """What is kept of a template: its ops, and the types of its results."""
    from topoc.lowering.emit.mil.derive import derive

    block, results = derive(asked)
    return b64encode(block).decode(), [[one.dtype, list(one.shape)] for one in results]


def _template(block: Any, results: tuple[Type, ...]) -> Template:
    names = [one.name for op in block.operations for one in op.outputs]
    return Template(tuple(_stencil(op, names) for op in block.operations), results)


def _stencil(op: Any, results: list[str]) -> Stencil:
    named, weights = [], []
    for parameter, given in op.inputs.items():
        for place, one in enumerate(given.arguments):
            if one.HasField("name"):
                named.append((parameter, place, int(one.name.removeprefix(ARGUMENT))))
            elif one.value.HasField("blobFileValue"):
                weights.append((parameter, one.value.blobFileValue.offset))
    if op.type == CONST and op.attributes["val"].HasField("blobFileValue"):
        weights.append(("val", 0))
    return Stencil(
        op=op,
        suffix=op.attributes["name"].immediateValue.tensor.strings.values[0][len(NAME) :],
        results=tuple(results.index(one.name) for one in op.outputs),
        names=tuple(named),
        weights=tuple(sorted(weights, key=lambda one: one[1])),
    )
