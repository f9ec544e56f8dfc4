"""What a pass is: a program in, a program out, both valid."""

from abc import ABC, abstractmethod
from typing import ClassVar

from attrs import frozen

from topoc.dsl.plain import Plain
from topoc.lowering.ir import Program


@frozen(eq=False, repr=False)
class Pass(Plain, ABC):
    """A named rewrite; its options are its fields, its docstring draws before and after."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, program: Program) -> Program:
        """The rewritten program."""
