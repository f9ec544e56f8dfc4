"""Where everything of a picture lies, in pixels; the template only writes it down.

Layers run downwards, so that any number of them is readable at any width. A box is a chunk, its
edges are the walls. KV that stays in a chunk runs in lanes beside its layers; what goes to another
chunk runs in lanes outside the boxes, through the walls.
"""

from collections.abc import Iterable, Sequence

from attrs import frozen

from topoc.dsl.plain import Plain
from topoc.lowering.cli.page import scene
from topoc.lowering.cli.page.label import LONGEST
from topoc.lowering.cli.size import size

MARGIN = 6
LEFT = 2 * MARGIN  # of rows
TEXT = LEFT + 9
ROW, ROW_GAP = 22, 2
HEADER = 68  # name and ms, parts, bytes, the bar
GAP = 28  # between two chunks, with a line on the KV that goes through
INNER = 338  # width of a layer's row
EDGE = LEFT + INNER  # where rows end
LANE = 10
BAR = INNER - 20  # the longest bar of ms
TRACK = LEFT + 118  # where the bar of positions begins
SEEN = 46  # the longest one


@frozen(kw_only=True, eq=False, repr=False)
class Bar(Plain):
    """Milliseconds from the left edge of a chunk, and the interval over them."""

    x: float
    y: float
    width: float
    low: float
    high: float


@frozen(kw_only=True, eq=False, repr=False)
class Row(Plain):
    """A layer's row; `seen` is the width of its bar of positions."""

    layer: scene.Layer
    y: int
    seen: float


@frozen(kw_only=True, eq=False, repr=False)
class Box(Plain):
    """A chunk's box; `above` is what goes through its upper wall, in words."""

    chunk: scene.Chunk
    y: int
    height: int
    rows: tuple[Row, ...]
    bar: Bar | None
    above: str


@frozen(kw_only=True, eq=False, repr=False)
class Path(Plain):
    """An arrow's line, from the donor's row by its lane to the reader's."""

    arrow: scene.Arrow
    line: str
    tip: str  # the last stretch alone, which is easier to point at
    head: str


@frozen(kw_only=True, eq=False, repr=False)
class Drawing(Plain):
    """A picture, placed."""

    picture: scene.Picture
    id: str
    finding: str  # what the ids of its side's findings begin with
    width: int
    height: int
    box_width: int
    boxes: tuple[Box, ...]
    paths: tuple[Path, ...]


def draw(picture: scene.Picture, longest_ms: float, id_: str, finding: str = "") -> Drawing:
    """Place a picture. `longest_ms` is what the longest bar stands for."""
    inside = _lanes(one for one in picture.arrows if not one.crosses)
    outside = _lanes(one for one in picture.arrows if one.crosses)
    edge = EDGE + MARGIN + LANE * _count(inside)
    boxes = _boxes(picture, longest_ms)
    rows = {row.layer.index: row.y + ROW // 2 for box in boxes for row in box.rows}
    paths = [
        _path(one, rows, (edge if one.crosses else EDGE) + LANE * (lane + 1))
        for one in picture.arrows
        for lane in [(outside if one.crosses else inside)[one.donor]]
    ]
    last = boxes[-1] if boxes else None
    return Drawing(
        picture=picture,
        id=id_,
        finding=finding,
        width=edge + LANE * _count(outside) + LEFT,
        height=last.y + last.height + MARGIN if last else MARGIN,
        box_width=edge - MARGIN,
        boxes=boxes,
        paths=tuple(paths),
    )


def longest(pictures: Iterable[scene.Picture]) -> float:
    """The most ms that any chunk of these may take in its first function."""
    found = (one.runs[0].ms for picture in pictures for one in picture.chunks)
    return max((ms["high"] for ms in found if ms is not None), default=0.0)


def _boxes(picture: scene.Picture, longest_ms: float) -> tuple[Box, ...]:
    boxes, y = [], MARGIN
    for at, chunk in enumerate(picture.chunks):
        y += GAP if at else 0
        rows = [
            Row(
                layer=layer,
                y=y + HEADER + index * (ROW + ROW_GAP),
                seen=round(SEEN * layer.seen / picture.context, 1),
            )
            for index, layer in enumerate(chunk.layers)
        ]
        height = HEADER + len(rows) * (ROW + ROW_GAP) + (MARGIN if rows else 0)
        above = _above(picture.crossings, chunk)
        bar = _bar(chunk, y, longest_ms)
        boxes.append(Box(chunk=chunk, y=y, height=height, rows=tuple(rows), bar=bar, above=above))
        y += height
    return tuple(boxes)


def _bar(chunk: scene.Chunk, y: int, longest_ms: float) -> Bar | None:
    ms = chunk.runs[0].ms
    if ms is None or not longest_ms:
        return None
    width, low, high = (round(BAR * ms[key] / longest_ms, 1) for key in ("ms", "low", "high"))
    return Bar(x=TEXT, y=y + HEADER - 13, width=width, low=TEXT + low, high=TEXT + high)


def _above(crossings: Sequence[scene.Crossing], chunk: scene.Chunk) -> str:
    found = [one for one in crossings if one.chunk == chunk.name]
    words = [f"KV of L{one.donor} {size(one.bytes)}" for one in found]
    line = " · ".join(words)
    if len(line) <= LONGEST:
        return line
    return f"KV of {len(found)} layers {size(sum(one.bytes for one in found))}"


def _lanes(arrows: Iterable[scene.Arrow]) -> dict[int, int]:
    """A lane for each donor, which no other donor uses along the same stretch."""
    ends: dict[int, int] = {}
    for one in arrows:
        ends[one.donor] = max(ends.get(one.donor, 0), one.reader)
    lanes: dict[int, int] = {}
    free: list[int] = []  # the layer at which each lane is free again
    for donor, end in sorted(ends.items()):
        lane = next((at for at, until in enumerate(free) if until < donor), len(free))
        free[lane : lane + 1] = [end]
        lanes[donor] = lane
    return lanes


def _count(lanes: dict[int, int]) -> int:
    return max(lanes.values(), default=-1) + 1


def _path(arrow: scene.Arrow, rows: dict[int, int], x: int) -> Path:
    """Out of the donor's row, along the lane, and into the reader's."""
    start, end = rows[arrow.donor], rows[arrow.reader]
    return Path(
        arrow=arrow,
        line=f"M{EDGE} {start}H{x}V{end}H{EDGE + 5}",
        tip=f"M{x} {end}H{EDGE}",
        head=f"M{EDGE} {end}l6 -3.5v7z",
    )
