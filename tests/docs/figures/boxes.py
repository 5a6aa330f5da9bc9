"""Figures of boxes and the arrows between them: parts of a system, or the states of something.

Boxes stand in columns and rows, which are counted from 0; a row is as high as its highest box. An
arrow leaves and enters in the middle of a side, straight where the two boxes face each other, and
bends at right angles elsewhere. What cannot be read is refused: a text that does not fit, an arrow
through a box, two texts in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from tests.docs.figures.parts import (
    LINE_HEIGHT,
    Drawing,
    FigureError,
    Point,
    Rect,
    bounds,
    wrapped,
)

Side = Literal["left", "right", "top", "bottom"]
Tone = Literal["plain", "accent", "store", "outside", "none"]

_FACING: dict[Side, Side] = {"left": "right", "right": "left", "top": "bottom", "bottom": "top"}
_OUTWARD: dict[Side, Point] = {
    "left": Point(-1, 0),
    "right": Point(1, 0),
    "top": Point(0, -1),
    "bottom": Point(0, 1),
}
_PADDING_X, _PADDING_Y = 12, 10
_FRAME, _FRAME_TOP = 14, 34
# How far a line that returns to the side it left goes out, and how wide texts beside lines are.
_DETOUR, _TEXT_WIDTH = 26, 150
# What an arrow's straight part needs of both boxes, from their corners.
_CORNER = 10


class Box(msgspec.Struct, forbid_unknown_fields=True):
    """A box `at` a column and row, over as many as `span` says. The first line of its text is its
    name, the others tell more; the `tone` of a text without a box is `none`."""

    at: tuple[float, int]
    text: list[str] = []
    span: tuple[float, int] = (1, 1)
    tone: Tone = "plain"


class Arrow(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from", "target": "to"}):
    """An arrow between two boxes or frames, named by their keys.

    `leave` and `enter` are the sides where it ends if not the nearest ones, and where on them, from
    0 (left, top) to 1. The text is beside its longest part, `text_at` which fraction of that, on
    the `text_side`, at most `text_width` pixels wide. `detour` is how far it goes out when it
    returns to the side it left, or where between the boxes it bends, as a fraction.
    """

    source: str
    target: str
    text: str = ""
    leave: tuple[Side, float] | None = None
    enter: tuple[Side, float] | None = None
    text_at: float = 0.5
    text_side: Side | None = None
    text_width: float = 0
    detour: float = 0
    both: bool = False
    dashed: bool = False


class Frame(msgspec.Struct, forbid_unknown_fields=True):
    """A room around boxes, with a text at its top."""

    around: list[str]
    text: str = ""


class Boxes(msgspec.Struct, forbid_unknown_fields=True, tag="boxes", tag_field="kind"):
    """The description of a figure of boxes. `gap` is the room between columns and between rows;
    `rows_apart` gives that of each pair of rows. `start` is the first state; its arrow comes from
    a dot on that side. `rounded` boxes are states."""

    title: str
    description: str
    boxes: dict[str, Box]
    arrows: list[Arrow] = []
    frames: dict[str, Frame] = {}
    column_width: float = 150
    gap: tuple[float, float] = (32, 44)
    rows_apart: list[float] = []
    start: tuple[str, Side] | None = None
    rounded: bool = False


def draw_boxes(figure: Boxes) -> str:
    """The figure as SVG. Raises `FigureError`."""
    drawing = Drawing()
    places = _places(figure)
    _refuse_overlaps(places)
    rooms = {}
    for key, frame in figure.frames.items():
        inside = bounds(places[inner] for inner in frame.around)
        rooms[key] = room = inside.grown(_FRAME, _FRAME_TOP if frame.text else None)
        drawing.rect(room, "room", 10)
        if frame.text:
            drawing.text([frame.text], Point(room.x + _FRAME, room.y + 8), "name", "start")
    lines = [_route(arrow, places | rooms) for arrow in figure.arrows]
    if figure.start is not None:
        key, side = figure.start
        end, out = _anchor(places[key], side, 0.5), _OUTWARD[side]
        origin = Point(end.x + 34 * out.x, end.y + 34 * out.y)
        drawing.path([origin, end], "line")
        drawing.dot(origin)
    for arrow, points in zip(figure.arrows, lines, strict=True):
        _refuse_crossing(arrow, points, places, figure)
        kind = "line dashed" if arrow.dashed else "line"
        drawing.path(points, kind)
        if arrow.both:
            drawing.path(points[::-1], kind)
    for key, box in figure.boxes.items():
        _draw_box(drawing, box, places[key], figure.rounded)
    taken = [places[key] for key, box in figure.boxes.items() if box.text]
    for arrow, points in zip(figure.arrows, lines, strict=True):
        if arrow.text:
            text = _draw_text(drawing, arrow, points)
            borders = any(_crosses_border(text, room) for room in rooms.values())
            if borders or any(text.meets(other) for other in taken) or _is_crossed(text, lines):
                raise FigureError(f"no room for {arrow.text!r}")
            taken.append(text)
    return drawing.finish(figure.title, figure.description)


def _places(figure: Boxes) -> dict[str, Rect]:
    """Where each box is. A row is as high as the boxes in it alone need."""
    rows = 1 + max(box.at[1] + box.span[1] - 1 for box in figure.boxes.values())
    heights = [0.0] * rows
    for box in figure.boxes.values():
        if box.span[1] == 1:
            heights[box.at[1]] = max(heights[box.at[1]], _height(box, _width(box, figure)))
    tops, top = [], 0.0
    for row, height in enumerate(heights):
        tops.append(top)
        apart = figure.rows_apart[row] if row < len(figure.rows_apart) else figure.gap[1]
        top += height + apart
    places = {}
    for key, box in figure.boxes.items():
        column, row = box.at
        last = row + box.span[1] - 1
        places[key] = Rect(
            column * (figure.column_width + figure.gap[0]),
            tops[row],
            _width(box, figure),
            tops[last] + heights[last] - tops[row],
        )
    return places


def _width(box: Box, figure: Boxes) -> float:
    return box.span[0] * (figure.column_width + figure.gap[0]) - figure.gap[0]


def _height(box: Box, width: float) -> float:
    padding = 0 if box.tone == "none" else 2 * _PADDING_Y
    return LINE_HEIGHT * len(_lines(box, width)) + padding


def _lines(box: Box, width: float) -> list[tuple[str, str]]:
    """Each line of a box with its kind."""
    inside = width - (0 if box.tone == "none" else 2 * _PADDING_X)
    lines = []
    for number, text in enumerate(box.text):
        is_name = number == 0 and box.tone != "none"
        kind = "name" if is_name else "quiet"
        lines += [(kind, line) for line in wrapped(text, inside, is_name)]
    return lines


def _draw_box(drawing: Drawing, box: Box, place: Rect, rounded: bool) -> None:
    if box.tone != "none":
        drawing.rect(place, box.tone, 16 if rounded else 6)
    lines = _lines(box, place.width)
    top = place.middle.y - LINE_HEIGHT * len(lines) / 2
    for number, (kind, line) in enumerate(lines):
        drawing.text([line], Point(place.middle.x, top + LINE_HEIGHT * number), kind)


def _route(arrow: Arrow, places: dict[str, Rect]) -> list[Point]:
    """The points of an arrow's line, level or upright between two of them."""
    source, target = _place(arrow.source, places), _place(arrow.target, places)
    leaving, entering = _sides(arrow, source, target)
    start_at, end_at = arrow.leave and arrow.leave[1], arrow.enter and arrow.enter[1]
    if _FACING[leaving] == entering:
        straight = _straight(source, target, leaving, start_at, end_at)
        if straight is not None:
            return straight
    start = _anchor(source, leaving, 0.5 if start_at is None else start_at)
    end = _anchor(target, entering, 0.5 if end_at is None else end_at)
    is_upright = leaving in ("top", "bottom")
    if leaving == entering:
        out = _OUTWARD[leaving]
        by = arrow.detour or _DETOUR
        if is_upright:
            y = (min if out.y < 0 else max)(start.y, end.y) + out.y * by
            return [start, Point(start.x, y), Point(end.x, y), end]
        x = (min if out.x < 0 else max)(start.x, end.x) + out.x * by
        return [start, Point(x, start.y), Point(x, end.y), end]
    if _FACING[leaving] == entering:
        part = arrow.detour or 0.5
        if is_upright:
            y = start.y + (end.y - start.y) * part
            return [start, Point(start.x, y), Point(end.x, y), end]
        x = start.x + (end.x - start.x) * part
        return [start, Point(x, start.y), Point(x, end.y), end]
    corner = Point(start.x, end.y) if is_upright else Point(end.x, start.y)
    if _is_ahead(start, corner, leaving) and _is_ahead(end, corner, entering):
        return [start, corner, end]
    # The other way around: out at both ends, and the corner where these meet.
    out, other_out = _OUTWARD[leaving], _OUTWARD[entering]
    by = arrow.detour or _DETOUR
    first = Point(start.x + out.x * _DETOUR, start.y + out.y * _DETOUR)
    last = Point(end.x + other_out.x * by, end.y + other_out.y * by)
    corner = Point(last.x, first.y) if is_upright else Point(first.x, last.y)
    return [start, first, corner, last, end]


def _is_ahead(start: Point, end: Point, side: Side) -> bool:
    """Whether one comes to the end by leaving from that side."""
    out = _OUTWARD[side]
    return (end.x - start.x) * out.x + (end.y - start.y) * out.y > 0


def _place(key: str, places: dict[str, Rect]) -> Rect:
    if key not in places:
        raise FigureError(f"there is no box {key!r}")
    return places[key]


def _sides(arrow: Arrow, source: Rect, target: Rect) -> tuple[Side, Side]:
    leaving: Side
    if source.bottom <= target.y:
        leaving = "bottom"
    elif target.bottom <= source.y:
        leaving = "top"
    else:
        leaving = "right" if source.x < target.x else "left"
    if arrow.leave is not None:
        leaving = arrow.leave[0]
    return leaving, arrow.enter[0] if arrow.enter is not None else _FACING[leaving]


def _straight(
    source: Rect, target: Rect, side: Side, start_at: float | None, end_at: float | None
) -> list[Point] | None:
    """A straight line between sides that face each other, if there is one: in the middle of what
    faces, or where one of its ends was asked to be."""
    if start_at is not None and end_at is not None:
        return None
    is_upright = side in ("top", "bottom")
    low = max(source.x, target.x) if is_upright else max(source.y, target.y)
    high = min(source.right, target.right) if is_upright else min(source.bottom, target.bottom)
    if start_at is None and end_at is None:
        at = (low + high) / 2
    else:
        place, part = (target, end_at) if start_at is None else (source, start_at)
        anchor = _anchor(place, side, part or 0)
        at = anchor.x if is_upright else anchor.y
    if not low + _CORNER <= at <= high - _CORNER:
        return None
    start, end = _anchor(source, side, 0), _anchor(target, _FACING[side], 0)
    if is_upright:
        return [Point(at, start.y), Point(at, end.y)]
    return [Point(start.x, at), Point(end.x, at)]


def _anchor(rect: Rect, side: Side, part: float) -> Point:
    """A point of a box's side."""
    if side in ("top", "bottom"):
        return Point(rect.x + rect.width * part, rect.y if side == "top" else rect.bottom)
    return Point(rect.x if side == "left" else rect.right, rect.y + rect.height * part)


def _draw_text(drawing: Drawing, arrow: Arrow, points: Sequence[Point]) -> Rect:
    start, end = max(
        pairwise(points),
        key=lambda pair: abs(pair[0].x - pair[1].x) + abs(pair[0].y - pair[1].y),
    )
    x, y = (
        start.x + (end.x - start.x) * arrow.text_at,
        start.y + (end.y - start.y) * arrow.text_at,
    )
    is_upright = start.x == end.x
    length = abs(end.x - start.x)
    width = arrow.text_width or (_TEXT_WIDTH if is_upright else max(length - 16, 60))
    lines = wrapped(arrow.text, width)
    high = LINE_HEIGHT * len(lines)
    match arrow.text_side or ("right" if is_upright else "top"):
        case "right":
            return drawing.text(lines, Point(x + 8, y - high / 2), "said", "start")
        case "left":
            return drawing.text(lines, Point(x - 8, y - high / 2), "said", "end")
        case "top":
            return drawing.text(lines, Point(x, y - high - 3), "said")
    return drawing.text(lines, Point(x, y + 4), "said")


def _refuse_overlaps(places: dict[str, Rect]) -> None:
    keys = list(places)
    for number, key in enumerate(keys):
        for other in keys[:number]:
            if places[key].meets(places[other]):
                raise FigureError(f"{key} and {other} are in one place")


def _refuse_crossing(
    arrow: Arrow, points: Sequence[Point], places: dict[str, Rect], figure: Boxes
) -> None:
    for start, end in pairwise(points):
        part = _segment(start, end)
        for key, place in places.items():
            if figure.boxes[key].text and part.meets(place.grown(-1)):
                raise FigureError(f"the arrow from {arrow.source} to {arrow.target} meets {key}")


def _is_crossed(text: Rect, lines: Sequence[Sequence[Point]]) -> bool:
    return any(
        _segment(start, end).meets(text.grown(-1))
        for points in lines
        for start, end in pairwise(points)
    )


def _crosses_border(text: Rect, room: Rect) -> bool:
    return text.meets(room) and bounds((text, room)) != room


def _segment(start: Point, end: Point) -> Rect:
    x, y = min(start.x, end.x), min(start.y, end.y)
    return Rect(x - 0.5, y - 0.5, abs(end.x - start.x) + 1, abs(end.y - start.y) + 1)
