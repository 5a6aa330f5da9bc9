"""What all figures have in common: colours, type, and the elements of an SVG.

A figure is one file for both schemes: its style has the light colours, and the dark ones if
dark is preferred. A browser takes the scheme for a picture from the page around it, so a
figure follows a site's own switch too. It has a ground of its own, so that it can be read on any
page.

Texts are wrapped by an estimate of their width, which leaves room for wider fonts: which font a
reader has is not known, and none is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from string import Template
from textwrap import indent
from typing import NamedTuple
from xml.sax.saxutils import escape

PALETTES: Mapping[str, Mapping[str, str]] = {
    "light": {
        "ground": "#ffffff",
        "rim": "#d8dfe6",
        "ink": "#17212b",
        "quiet": "#4d5b68",
        "line": "#566574",
        "room": "#f6f8fa",
        "plain": "#eaeff4",
        "plain_edge": "#7c8c9b",
        "accent": "#dcf1ee",
        "accent_edge": "#00796b",
        "store": "#fdf0d9",
        "store_edge": "#a86400",
        "bad": "#b3261e",
    },
    "dark": {
        "ground": "#15191f",
        "rim": "#323b46",
        "ink": "#e8eef4",
        "quiet": "#abb8c5",
        "line": "#92a2b2",
        "room": "#1b2129",
        "plain": "#262f39",
        "plain_edge": "#74869a",
        "accent": "#113d39",
        "accent_edge": "#4db6ac",
        "store": "#3b2d12",
        "store_edge": "#d6a23f",
        "bad": "#ff8f85",
    },
}
# Which colours texts have on which, and lines beside which: tests compute their contrast.
TEXTS = [("ink", on) for on in ("ground", "room", "plain", "accent", "store")]
TEXTS += [("quiet", on) for on in ("ground", "room", "plain", "accent", "store")]
TEXTS += [("bad", on) for on in ("ground", "room")]
LINES = [(edge, on) for edge in ("line", "bad") for on in ("ground", "room")]
LINES += [
    (f"{tone}_edge", on) for tone in ("plain", "accent", "store") for on in ("ground", "room")
]

_SHAPES = """\
text { font: 13px -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif; }
.name { font-size: 14px; font-weight: 600; }
.code { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.name .code { font-size: 13px; font-weight: 600; }
.line, .lost, .life, .cross { fill: none; stroke-width: 1.5; }
.over { paint-order: stroke; stroke-width: 5px; stroke-linejoin: round; }
.life, .dashed { stroke-dasharray: 4 4; }
"""
_COLOURS = Template("""\
.ground { fill: $ground; stroke: $rim; }
.room { fill: $room; stroke: $rim; }
.plain { fill: $plain; stroke: $plain_edge; }
.accent { fill: $accent; stroke: $accent_edge; }
.store { fill: $store; stroke: $store_edge; }
.outside { fill: $ground; stroke: $plain_edge; }
.name, .said { fill: $ink; }
.over { stroke: $ground; }
.quiet { fill: $quiet; }
.warn { fill: $bad; }
.line, .life { stroke: $line; }
.tip, .dot { fill: $line; }
.lost, .cross { stroke: $bad; }
""")

MARGIN = 16
LINE_HEIGHT = 18
CORNER = 8
_TIP_LENGTH, _TIP_WIDTH = 9, 8
_NARROW, _WIDE = set("fijlrtI.,:;'|!()[]{}/ -"), set("mwMW@%")


class FigureError(Exception):
    """A figure that cannot be drawn as it is described: says what does not fit."""


class Rect(NamedTuple):
    """A rectangle, in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def middle(self) -> Point:
        return Point(self.x + self.width / 2, self.y + self.height / 2)

    def grown(self, by: float, top: float | None = None) -> Rect:
        """With so much more on each side, and another amount above if that is given."""
        above = by if top is None else top
        return Rect(self.x - by, self.y - above, self.width + 2 * by, self.height + by + above)

    def meets(self, other: Rect) -> bool:
        """Whether the two have a common part."""
        across = self.x < other.right and other.x < self.right
        return across and self.y < other.bottom and other.y < self.bottom


class Point(NamedTuple):
    """A place, in pixels from the left and from the top."""

    x: float
    y: float


def bounds(rects: Iterable[Rect]) -> Rect:
    """The smallest rectangle around some."""
    some = list(rects)
    x, y = min(rect.x for rect in some), min(rect.y for rect in some)
    return Rect(x, y, max(rect.right for rect in some) - x, max(rect.bottom for rect in some) - y)


def width_of(text: str, name: bool = False) -> float:
    """About how wide a line of text is, at most; backquotes around code do not count."""
    em = 14.7 if name else 13.0
    width = 0.0
    for number, part in enumerate(text.split("`")):
        if number % 2:
            width += len(part) * 0.605 * (em - 1)
        else:
            width += em * sum(_em_width(character) for character in part)
    return width


def _em_width(character: str) -> float:
    if character in _NARROW:
        return 0.35
    if character in _WIDE:
        return 0.92
    return 0.71 if character.isupper() else 0.59


def wrapped(text: str, width: float, name: bool = False) -> list[str]:
    """The lines of a text, as few as fit into the width, and then as even as they can be. Raises
    `FigureError` if a word is wider."""
    words = re.findall(r"(?:`[^`]*`|[^\s`])+", text)
    widest = max(words, key=lambda word: width_of(word, name))
    if width_of(widest, name) > width:
        raise FigureError(f"{widest!r} is wider than {width:.0f} pixels")
    lines = _filled(words, width, name)
    while True:
        width = max(width_of(line, name) for line in lines) - 1
        narrower = _filled(words, width, name)
        if len(narrower) > len(lines) or width < width_of(widest, name):
            return lines
        lines = narrower


def _filled(words: Sequence[str], width: float, name: bool) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and width_of(f"{lines[-1]} {word}", name) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


class Drawing:
    """Elements in the order in which they are painted, and the room that they take."""

    def __init__(self) -> None:
        self._elements: list[str] = []
        self._rects: list[Rect] = []

    def rect(self, rect: Rect, kind: str, radius: float = 6) -> None:
        """A rectangle with round corners."""
        self._rects.append(rect)
        place = f'x="{_n(rect.x)}" y="{_n(rect.y)}" width="{_n(rect.width)}"'
        self._add(f'<rect class="{kind}" {place} height="{_n(rect.height)}" rx="{_n(radius)}"/>')

    def dot(self, at: Point) -> None:
        """The point from which states begin."""
        self._rects.append(Rect(at.x - 6, at.y - 6, 12, 12))
        self._add(f'<circle class="dot" cx="{_n(at.x)}" cy="{_n(at.y)}" r="6"/>')

    def path(self, points: Sequence[Point], kind: str, *, tip: bool = True) -> None:
        """A line through the points with round corners; with an arrow's `tip` at its end."""
        self._rects += [Rect(point.x, point.y, 0, 0) for point in points]
        self._add(f'<path class="{kind}" d="{_rounded(points, 4 if tip else 0)}"/>')
        if tip:
            self._tip(points[-2], points[-1])

    def cross(self, at: Point) -> None:
        """Where something ends that should have gone on."""
        x, y = at
        ends = f"M{_n(x - 5)} {_n(y - 5)}L{_n(x + 5)} {_n(y + 5)}"
        self._add(
            f'<path class="cross" d="{ends}M{_n(x - 5)} {_n(y + 5)}L{_n(x + 5)} {_n(y - 5)}"/>'
        )

    def text(self, lines: Sequence[str], at: Point, kind: str, anchor: str = "middle") -> Rect:
        """Lines of text; `at` is the middle, or the side, of the top of the first one. Returns the
        room that they take."""
        width = max(width_of(line, kind == "name") for line in lines)
        left = at.x - {"start": 0, "middle": width / 2, "end": width}[anchor]
        rect = Rect(left, at.y, width, LINE_HEIGHT * len(lines))
        self._rects.append(rect)
        for number, line in enumerate(lines):
            y = at.y + LINE_HEIGHT * number + 13.5
            place = f'x="{_n(at.x)}" y="{_n(y)}" text-anchor="{anchor}"'
            self._add(f'<text class="{kind}" {place}>{_spans(line)}</text>')
        return rect

    def add(self, other: Drawing) -> None:
        """Paint another drawing above this one."""
        self._elements += other._elements
        self._rects += other._rects

    def finish(self, title: str, description: str) -> str:
        """The whole file."""
        room = bounds(self._rects).grown(MARGIN)
        ground = room.grown(-0.5)
        size = f'width="{_n(room.width)}" height="{_n(room.height)}"'
        view = f'viewBox="{" ".join(_n(value) for value in room)}"'
        labels = 'role="img" aria-labelledby="title desc"'
        light, dark = (_COLOURS.substitute(PALETTES[scheme]) for scheme in ("light", "dark"))
        dark = f"@media (prefers-color-scheme: dark) {{\n{indent(dark, '  ')}}}"
        whole = Drawing()
        whole._add(f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} {labels}>')
        whole._add(f'<title id="title">{escape(title)}</title>')
        whole._add(f'<desc id="desc">{escape(description)}</desc>')
        whole._add(f"<style>\n{_SHAPES}{light}{dark}\n</style>")
        whole.rect(ground, "ground", CORNER)
        whole.add(self)
        whole._add("</svg>\n")
        return "\n".join(whole._elements)

    def _tip(self, before: Point, end: Point) -> None:
        length = abs(end.x - before.x) + abs(end.y - before.y)
        dx, dy = (end.x - before.x) / length, (end.y - before.y) / length
        base = Point(end.x - dx * _TIP_LENGTH, end.y - dy * _TIP_LENGTH)
        half = _TIP_WIDTH / 2
        corners = (
            end,
            Point(base.x - dy * half, base.y + dx * half),
            Point(base.x + dy * half, base.y - dx * half),
        )
        points = " ".join(f"{_n(x)},{_n(y)}" for x, y in corners)
        self._add(f'<polygon class="tip" points="{points}"/>')

    def _add(self, element: str) -> None:
        self._elements.append(element)


def _rounded(points: Sequence[Point], short_by: float) -> str:
    """A path along lines that are level or upright, which ends a little before its last point."""
    path = f"M{_n(points[0].x)} {_n(points[0].y)}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        radius = min(CORNER, _length(before, corner) / 2, _length(corner, after) / 2)
        start, end = _towards(corner, before, radius), _towards(corner, after, radius)
        path += f"L{_n(start.x)} {_n(start.y)}Q{_n(corner.x)} {_n(corner.y)}"
        path += f" {_n(end.x)} {_n(end.y)}"
    last = _towards(points[-1], points[-2], short_by)
    return path + f"L{_n(last.x)} {_n(last.y)}"


def _length(one: Point, other: Point) -> float:
    return abs(one.x - other.x) + abs(one.y - other.y)


def _towards(start: Point, end: Point, by: float) -> Point:
    length = _length(start, end)
    return Point(
        start.x + (end.x - start.x) * by / length, start.y + (end.y - start.y) * by / length
    )


def _spans(line: str) -> str:
    parts = line.split("`")
    return "".join(
        f'<tspan class="code">{escape(part)}</tspan>' if number % 2 else escape(part)
        for number, part in enumerate(parts)
        if part
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
