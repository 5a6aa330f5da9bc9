"""The usage report as one self-contained page.

Names come from clients, and may be anything. Each is escaped where it goes into the page,
unprintable characters are written as escapes, and no name goes into a plot, which would read ``$``
as mathematics.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from html import escape
from itertools import accumulate
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1",
    "#ff9da7", "#9c755f", "#86bcb6", "#d37295", "#a0cbe8", "#bab0ac",
)  # fmt: skip
_NAME_SHOWN = 120
_EPOCH = date(1970, 1, 1)
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
_UNITS = ("kB", "MB", "GB", "TB", "PB")
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; color: #222 }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
dl { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem } dt { color: #666 }
dd { margin: 0; font-size: 1.3rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
td.name { word-break: break-all } i { display: inline-block; width: .8em; height: .8em }
svg { max-width: 100%; height: auto } .legend span { margin-right: 1.2em; white-space: nowrap }
"""


class Day(NamedTuple):
    """What a bucket got on a day."""

    bucket: str
    day: date
    bytes: int
    messages: int


class HotSpot(NamedTuple):
    """A stream that got much of what its bucket got on a day."""

    bucket: str
    stream: str
    day: date
    bytes: int
    messages: int
    share: float


class Objects(NamedTuple):
    """The objects of one kind: their bytes as stored, and once uncompressed."""

    kind: str
    objects: int
    stored_bytes: int
    content_bytes: int


class Page(NamedTuple):
    """What the page tells. `days` are of the buckets shown only."""

    title: str
    bytes: int
    messages: int
    appends: int
    created: int
    buckets: int
    first_day: date | None
    last_day: date | None
    shown_buckets: Sequence[str]
    days: Sequence[Day]
    hot_spots: Sequence[HotSpot]
    objects: Sequence[Objects]


def render(page: Page) -> str:
    """The page, as HTML."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        # What is in the page may be hostile: a browser that is told so loads and runs nothing.
        _POLICY,
        f"<title>Usage of {shown(page.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Usage of {shown(page.title)}</h1>",
        _summary(page),
    ]
    if page.days:
        legend = _legend(page.shown_buckets)
        parts += ["<h2>Bytes a day, by bucket</h2>", _plot(page, _stack), legend]
        parts += ["<h2>Growth: all bytes up to a day, by bucket</h2>", _plot(page, _growth), legend]
        parts += ["<h2>Messages a day, by bucket</h2>", _plot(page, _heat), _numbers(page)]
    parts += ["<h2>Hot spots</h2>", _hot_spots(page.hot_spots)]
    parts += ["<h2>Objects and their compression</h2>", _objects(page.objects), "</body></html>"]
    return "\n".join(parts)


def shown(name: str) -> str:
    """A name as it may stand in HTML, and be read as what it is."""
    name = name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}…"
    printable = (
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in name
    )
    return escape("".join(printable))


def size_shown(count: float) -> str:
    """Bytes in the unit that gives the fewest digits: ``1.5 GB``."""
    if count < 1000:
        return f"{count:.0f} B"
    power = min(int(math.log10(count)) // 3, len(_UNITS))
    return f"{count / 1000**power:.1f} {_UNITS[power - 1]}"


def _summary(page: Page) -> str:
    content = sum(each.content_bytes for each in page.objects)
    stored = sum(each.stored_bytes for each in page.objects)
    days = f"{page.first_day} to {page.last_day}" if page.first_day else "none"
    told = {
        "received": size_shown(page.bytes),
        "messages": f"{page.messages:,}",
        "appends": f"{page.appends:,}",
        "streams created": f"{page.created:,}",
        "buckets": f"{page.buckets:,}",
        "stored": size_shown(stored),
        "compression": f"{content / stored:.2f}" if stored else "–",
        "days": days,
    }
    items = (f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in told.items())
    return f"<dl>{''.join(items)}</dl>"


def _legend(buckets: Sequence[str]) -> str:
    entries = (
        f'<span><i style="background:{_colour(place)}"></i> {shown(bucket)}</span>'
        for place, bucket in enumerate(buckets)
    )
    return f'<p class="legend">{" ".join(entries)}</p>'


def _numbers(page: Page) -> str:
    """The rows of the map by number: names are for HTML alone."""
    names = enumerate(page.shown_buckets, 1)
    entries = (f"<span>{row} {shown(name)}</span>" for row, name in names)
    return f'<p class="legend">{" ".join(entries)}</p>'


def _hot_spots(hot_spots: Iterable[HotSpot]) -> str:
    return _table(
        ("bucket", "stream", "day", "*bytes", "*messages", "*of the bucket's day"),
        (
            (
                each.bucket,
                each.stream,
                str(each.day),
                size_shown(each.bytes),
                f"{each.messages:,}",
                f"{each.share:.0%}",
            )
            for each in hot_spots
        ),
    )


def _objects(objects: Iterable[Objects]) -> str:
    return _table(
        ("kind", "*objects", "*stored", "*uncompressed", "*ratio"),
        (
            (
                each.kind,
                f"{each.objects:,}",
                size_shown(each.stored_bytes),
                size_shown(each.content_bytes),
                f"{each.content_bytes / each.stored_bytes:.2f}" if each.stored_bytes else "–",
            )
            for each in objects
        ),
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the columns of titles that begin with a star are numbers."""
    kinds = ["number" if title[0] == "*" else "name" for title in titles]
    heads = (
        f'<th class="{kind}">{shown(title.lstrip("*"))}</th>'
        for kind, title in zip(kinds, titles, strict=True)
    )
    lines = [f"<tr>{''.join(heads)}</tr>"]
    for row in rows:
        cells = (
            f'<td class="{kind}">{shown(value)}</td>'
            for kind, value in zip(kinds, row, strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


class _Series(NamedTuple):
    """Of each bucket shown, a value for each day, those without anything included.

    `days` are numbers as plots have them.
    """

    days: list[float]
    bytes: list[list[int]]
    messages: list[list[int]]


def _series(page: Page) -> _Series:
    first = min(day.day for day in page.days)
    last = max(day.day for day in page.days)
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    found = {(day.bucket, day.day): day for day in page.days}
    none = Day("", first, 0, 0)
    rows = [[found.get((bucket, day), none) for day in days] for bucket in page.shown_buckets]
    return _Series(
        [float((day - _EPOCH).days) for day in days],
        [[day.bytes for day in row] for row in rows],
        [[day.messages for day in row] for row in rows],
    )


def _plot(page: Page, draw: Callable[[Figure, Axes, _Series], None]) -> str:
    """A plot as SVG, without its XML prologue, and the same for the same data."""
    with rc_context({"svg.hashsalt": draw.__name__, "font.size": 9}):
        figure = Figure(figsize=(10, 3.2), layout="constrained")
        draw(figure, figure.add_subplot(), _series(page))
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata=_NO_METADATA)
    text = written.getvalue()
    return text[text.index("<svg") :]


def _stack(figure: Figure, axes: Axes, series: _Series) -> None:
    bottom = [0.0] * len(series.days)
    for place, row in enumerate(series.bytes):
        scaled = [value / 1e6 for value in row]
        axes.bar(series.days, scaled, bottom=bottom, color=_colour(place), width=0.8)
        bottom = [low + high for low, high in zip(bottom, scaled, strict=True)]
    _finish(axes, "MB")


def _growth(figure: Figure, axes: Axes, series: _Series) -> None:
    totals = [[value / 1e6 for value in accumulate(row)] for row in series.bytes]
    colours = [_colour(place) for place in range(len(totals))]
    axes.stackplot(series.days, totals, colors=colours)
    _finish(axes, "MB")


def _heat(figure: Figure, axes: Axes, series: _Series) -> None:
    rows = range(1, len(series.messages) + 1)
    mesh = axes.pcolormesh(
        series.days, list(rows), series.messages, shading="nearest", cmap="YlOrRd"
    )
    bar = figure.colorbar(mesh, ax=axes, label="messages")
    # Else it is an image in the drawing, which no browser loads that is told to load nothing.
    assert bar.solids is not None
    bar.solids.set_rasterized(False)
    axes.set_yticks(list(rows))
    axes.invert_yaxis()
    _finish(axes, "bucket")


def _finish(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.xaxis_date()
    axes.tick_params(axis="x", rotation=30)
    axes.spines[["top", "right"]].set_visible(False)


def _colour(place: int) -> str:
    return _COLOURS[place % len(_COLOURS)]
