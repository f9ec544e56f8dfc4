"""One finding for one cause: layers that the same rule set the same way."""

from collections.abc import Iterable, Iterator

from topoc.dsl.lint.subject import Subject
from topoc.dsl.model import Block
from topoc.dsl.source import Span


def by_rule(
    subject: Subject, faulty: Iterable[tuple[Block, int]], *, clause: str = "source"
) -> Iterator[tuple[Span, int, list[int]]]:
    """Faulty blocks by the rule that set a clause and by donor: its place, the donor, the layers.

    Where the checkpoint decides, no rule can be shown and all such layers belong together.
    """
    groups: dict[tuple[Span | None, int], list[Block]] = {}
    for block, donor in faulty:
        groups.setdefault((block.kv.at(clause), donor), []).append(block)
    for (_, donor), blocks in groups.items():
        yield subject.at(blocks[0], clause), donor, [block.index for block in blocks]
