"""What a host can call, step by step."""

from typing import Literal

from attrs import frozen

from topoc.dsl.plain import Plain
from topoc.lowering.manifest.ports import Input, Output


@frozen(kw_only=True, eq=False, repr=False)
class Step(Plain):
    """One prediction: a function of a package, on a unit."""

    package: str
    function: str
    unit: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]


@frozen(kw_only=True, eq=False, repr=False)
class Copy(Plain):
    """A state buffer that a function's package holds, and another package may have changed last."""

    buffer: str
    package: str  # of this function
    others: tuple[str, ...]


@frozen(kw_only=True, eq=False, repr=False)
class Function(Plain):
    """A call that the host can make: its steps in order. `tokens` is T, the rows of a call.

    Before a step, the host brings each buffer of `copies` that its package holds over from the
    package that changed it last. A function that writes its caches itself, or sees its rows as if
    it did, may take full calls only, and none that would wrap in a cache: for each of `unwrapped`,
    P mod slots + T <= slots.
    One that gives no answer (it fills caches only) is followed by another that consumes at least
    the last token.
    """

    name: str
    role: Literal["decode", "prefill", "verify"]
    tokens: int
    steps: tuple[Step, ...]
    full_only: bool = False
    unwrapped: tuple[int, ...] = ()
    answers: bool = True
    copies: tuple[Copy, ...] = ()
