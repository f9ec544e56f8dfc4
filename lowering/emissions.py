"""Packages that were emitted in this compile: rules look at them first, then they are written."""

from collections.abc import Mapping

from attrs import define, field

from topoc.lowering.compress.recipe import Recipe
from topoc.lowering.emit.mil import emit
from topoc.lowering.emit.mil.module import Emission
from topoc.lowering.emit.mil.templates import Templates
from topoc.lowering.ir import DType, Program

Asked = tuple[tuple[Program, ...], DType, Mapping[str, Recipe]]


@define
class Emissions:
    """Emits each package once, however often it is asked for."""

    templates: Templates = field(factory=Templates)
    _made: list[tuple[Asked, Emission]] = field(factory=list)

    def of(
        self, programs: tuple[Program, ...], dtype: DType, recipes: Mapping[str, Recipe]
    ) -> Emission:
        """The emission of a package: of the same programs, types and recipes, the same one."""
        asked = (programs, dtype, recipes)
        for before, made in self._made:
            if before == asked:
                return made
        made = emit(programs, dtype=dtype, recipes=recipes, templates=self.templates)
        self._made.append((asked, made))
        return made
