"""What `topoc explain` says of an error that no rule raises."""

from attrs import frozen

from topoc.dsl.plain import Plain


@frozen(eq=False, repr=False)
class Lesson(Plain):
    """One kind of error: a sentence, lines that raise it, and the same lines mended.

    The lines stand in a topology of Gemma 3 270M, or are whole topologies.
    """

    says: str
    wrong: str
    right: str
