"""Figures of what is sent between parts, in the order of time, from top to bottom.

Each part has a lane. A step is an arrow from one lane to another one, a note at a lane, or a break,
a text across all lanes. Texts are wrapped to the room that lanes leave.
"""

from __future__ import annotations

import msgspec

from tests.docs.figures.parts import (
    LINE_HEIGHT,
    Drawing,
    FigureError,
    Point,
    Rect,
    width_of,
    wrapped,
)

_HEAD_HEIGHT = 38
_STEP_GAP = 14
_NOTE_PADDING = 8
# How far a text stays from the lanes beside it.
_CLEAR = 12


class Step(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from", "target": "to"}):
    """An arrow (`from`, `to`), a note (`at`) or a break (only `text`). An arrow that is `lost` ends
    half-way. A note may be a `store`, something on a disk, and may be where its lane `ends`. A step
    `beside` the one before begins where that began."""

    text: str
    source: str | None = None
    target: str | None = None
    at: str | None = None
    lost: bool = False
    store: bool = False
    beside: bool = False
    ends: bool = False


class Sequence(msgspec.Struct, forbid_unknown_fields=True, tag="sequence", tag_field="kind"):
    """The description of a sequence: its lanes by name, `apart` pixels from each other, and the
    steps. The lane `accent` is drawn as the one that matters."""

    title: str
    description: str
    lanes: list[str]
    steps: list[Step]
    apart: float = 260
    note_width: float = 0
    accent: str = ""


def draw_sequence(figure: Sequence) -> str:
    """The figure as SVG. Raises `FigureError`."""
    above, lanes = Drawing(), {name: figure.apart * at for at, name in enumerate(figure.lanes)}
    ends: dict[str, float] = {}
    top = began = _HEAD_HEIGHT + 18.0
    for step in figure.steps:
        began = began if step.beside else top
        for name in (step.source, step.target, step.at):
            if name is not None and name not in lanes:
                raise FigureError(f"there is no lane {name!r}")
        if step.at is not None:
            bottom = _draw_note(above, figure, step, lanes[step.at], began)
        elif step.source is not None and step.target is not None:
            bottom = _draw_arrow(above, step, lanes[step.source], lanes[step.target], began)
        else:
            bottom = _draw_break(above, step, list(lanes.values()), began)
        if step.ends and step.at is not None:
            ends[step.at] = bottom + 8
            bottom += 18
        top = max(top, bottom + _STEP_GAP)
    drawing = Drawing()
    for name, x in lanes.items():
        width = max(110.0, width_of(name, name=True) + 28)
        head = Rect(x - width / 2, 0, width, _HEAD_HEIGHT)
        end = Point(x, ends.get(name, top))
        drawing.path([Point(x, _HEAD_HEIGHT), end], "life", tip=False)
        if name in ends:
            drawing.cross(end)
        drawing.rect(head, "accent" if name == figure.accent else "plain")
        drawing.text([name], Point(x, (_HEAD_HEIGHT - LINE_HEIGHT) / 2), "name")
    drawing.add(above)
    return drawing.finish(figure.title, figure.description)


def _draw_arrow(drawing: Drawing, step: Step, start: float, end: float, top: float) -> float:
    width = abs(end - start) - 2 * _CLEAR
    lines = wrapped(step.text, width)
    drawing.text(lines, Point((start + end) / 2, top), "said over")
    y = top + LINE_HEIGHT * len(lines) + 6
    if step.lost:
        half = Point((start + end) / 2, y)
        drawing.path([Point(start, y), half], "lost", tip=False)
        drawing.cross(half)
    else:
        drawing.path([Point(start, y), Point(end, y)], "line")
    return y + 4


def _draw_note(drawing: Drawing, figure: Sequence, step: Step, x: float, top: float) -> float:
    most = figure.note_width or figure.apart - 2 * _CLEAR
    lines = wrapped(step.text, most - 2 * _NOTE_PADDING)
    width = max(width_of(line) for line in lines) + 2 * _NOTE_PADDING
    height = LINE_HEIGHT * len(lines) + _NOTE_PADDING
    drawing.rect(Rect(x - width / 2, top, width, height), "store" if step.store else "outside")
    drawing.text(lines, Point(x, top + _NOTE_PADDING / 2), "said")
    return top + height


def _draw_break(drawing: Drawing, step: Step, lanes: list[float], top: float) -> float:
    width = max(lanes) - min(lanes)
    lines = wrapped(step.text, width)
    rect = Rect(min(lanes) - 40, top, width + 80, LINE_HEIGHT * len(lines) + _NOTE_PADDING)
    drawing.rect(rect, "room")
    drawing.text(lines, Point(rect.middle.x, top + _NOTE_PADDING / 2), "warn")
    return rect.bottom
