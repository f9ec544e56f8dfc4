"""What the kinds of error mean that no rule raises, with wrong lines and their mend."""

from inspect import cleandoc

from topoc.dsl.lint.lessons import chunks, layers, text
from topoc.dsl.lint.lessons.lesson import Lesson
from topoc.dsl.lint.lessons.stages import STAGES
from topoc.dsl.lint.rules import CODES, rule

LESSONS: dict[str, Lesson] = {**text.LESSONS, **layers.LESSONS, **chunks.LESSONS}

NOT_LOWERED = ".not-lowered"
_NOT_LOWERED = "The text says what the compiler does not build yet; lint accepts it, compile can't."


def summary(code: str) -> str:
    """What a code stands for, in a sentence; the code itself where nothing more is known."""
    if code in CODES:
        return cleandoc(rule(code).__doc__ or code).splitlines()[0]
    if code.endswith(NOT_LOWERED):
        return _NOT_LOWERED
    return LESSONS[code].says if code in LESSONS else STAGES.get(code, code)


__all__ = ["LESSONS", "NOT_LOWERED", "STAGES", "Lesson", "summary"]
