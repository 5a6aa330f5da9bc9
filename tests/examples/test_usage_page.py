"""The usage report's page is self-contained, and escapes every name."""

from __future__ import annotations

from datetime import date
from html.parser import HTMLParser

import pytest

from examples.usage.page import Day, HotSpot, Objects, Page, render, size_shown

pytestmark = pytest.mark.long

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]></svg><script src='//evil.example/x.js'></script>",
    "<!-- --><style>@import url(//evil.example)</style>",
    "</title></style></table>",
    r"$\frac{$ ^_^ $",
    "_hidden",
    "\u202egpj.exe\0\n\x1b[31m",
    "日本語 🎉 'quoted' & more",
    "x" * 5000,
]
_OF_THE_PAGE = "html head meta title style body h1 h2 dl div dt dd p span i table tr td th"
_OF_PLOTS = "svg defs g path use clippath rect lineargradient stop"
ALLOWED = {*_OF_THE_PAGE.split(), *_OF_PLOTS.split()}


class Parsed(HTMLParser):
    """A page as a browser parses it: elements, links and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attributes]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_of(names: list[str]) -> Page:
    days = [
        Day(name, date(2026, 1, 1 + number), 1_000_000 * place, 10 * place)
        for place, name in enumerate(names, 1)
        for number in range(3)
    ]
    return Page(
        title=names[0],
        bytes=3_000_000,
        messages=30,
        appends=30,
        created=3,
        buckets=len(names),
        first_day=date(2026, 1, 1),
        last_day=date(2026, 1, 3),
        shown_buckets=names,
        days=days,
        hot_spots=[HotSpot(name, name, date(2026, 1, 1), 100, 1, 0.5) for name in names],
        objects=[Objects("packs", 3, 100, 150), Objects("log segments", 0, 0, 0)],
    )


def test_hostile_names_are_text_and_nothing_else() -> None:
    found = Parsed(render(page_of(HOSTILE)))
    assert set(found.tags) <= ALLOWED
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    text = "".join(found.text)
    for name in HOSTILE[:5]:
        assert name in text
    assert r"\u202egpj.exe\x00\n\x1b[31m" in text
    assert "x" * 121 not in text


def test_names_do_not_change_the_elements_of_the_page() -> None:
    plain = [f"bucket-{number}" for number in range(len(HOSTILE))]
    assert Parsed(render(page_of(HOSTILE))).tags == Parsed(render(page_of(plain))).tags


def test_the_page_has_no_links() -> None:
    found = Parsed(render(page_of(["team-a", "team-b"])))
    leading = [value for name, value in found.attributes if name in ("src", "href", "xlink:href")]
    assert leading
    assert all(value.startswith("#") for value in leading)
    assert "http-equiv" in dict(found.attributes)
    assert found.tags.count("svg") == 3


def test_an_empty_store_has_a_page_too() -> None:
    page = page_of(["team-a"])._replace(
        days=[], shown_buckets=[], hot_spots=[], first_day=None, last_day=None
    )
    assert "svg" not in Parsed(render(page)).tags


def test_the_same_usage_makes_the_same_page() -> None:
    assert render(page_of(["a", "b"])) == render(page_of(["a", "b"]))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.1e9, "2.1 GB"), (3e18, "3000.0 PB")],
)
def test_sizes_are_shown_in_a_fitting_unit(count: float, text: str) -> None:
    assert size_shown(count) == text
