"""The figures of the documentation: drawn from their descriptions, and fit to be read by anyone."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from streamd.http.door.states import FOLLOWING, State
from tests.docs.figures import FIGURES, described, drawn, names
from tests.docs.figures.boxes import Arrow, Box, Boxes, Frame
from tests.docs.figures.parts import LINES, PALETTES, TEXTS, FigureError
from tests.docs.figures.sequence import Sequence, Step
from tests.docs.pages import ROOT, pages

SVG = "{http://www.w3.org/2000/svg}"
NAMES = names()
# Of Web Content Accessibility Guidelines 2.2, level AA: texts, and what a figure needs to be seen.
TEXT_CONTRAST, LINE_CONTRAST = 4.5, 3.0
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+\.svg)\)")
# Lines of boxes, and arrows with a shaft; a page shows console output, which has neither.
DRAWN = re.compile(r"[─-╿▲▶▼◀◄►]|\+--|--+>|<--+(?!-)")


def pictures() -> list[tuple[str, Path, str]]:
    """Each use of a figure: the page, the file, and what stands for it in text."""
    return [
        (page, (ROOT / page).parent / target, " ".join(text.split()))
        for page in pages()
        for text, target in PICTURE.findall((ROOT / page).read_text())
    ]


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 (our own files)


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_what_its_description_gives(name: str) -> None:
    assert (FIGURES / f"{name}.svg").read_text() == drawn(described(name)), "run `make fix`"


def test_each_figure_has_a_description() -> None:
    assert sorted(path.stem for path in FIGURES.glob("*.svg")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_has_texts_for_those_who_do_not_see_it(name: str) -> None:
    root = parsed((FIGURES / f"{name}.svg").read_text())
    said = described(name)
    assert said.title
    assert said.description
    assert (root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")) == (
        said.title,
        said.description,
    )
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "title desc")


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_has_both_schemes_and_loads_nothing(name: str) -> None:
    text = (FIGURES / f"{name}.svg").read_text()
    style = parsed(text).findtext(f"{SVG}style") or ""
    light, dark = style.split("@media (prefers-color-scheme: dark) {")
    for tone in ("ground", "said", "line"):
        assert f".{tone} {{" in light or f".{tone}," in light
        assert f".{tone} {{" in dark or f".{tone}," in dark
    outside = re.findall(r"https?://[^\"\s]+", text)
    assert outside == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"href|url\(|@import|@font-face|<(script|image|foreignObject)", text)


def test_each_figure_is_on_a_page() -> None:
    used = {file.resolve() for _, file, _ in pictures()}
    assert used == {FIGURES / f"{name}.svg" for name in NAMES}


def test_a_page_says_in_words_what_a_figure_shows() -> None:
    for page, file, text in pictures():
        assert text == described(file.stem).description, (page, file.name)


@pytest.mark.parametrize("page", pages())
def test_no_page_draws_with_letters(page: str) -> None:
    text = re.sub(r"<!--.*?-->", "", (ROOT / page).read_text(), flags=re.DOTALL)
    assert DRAWN.findall(text) == []


def test_the_first_page_has_one_figure() -> None:
    assert [file.stem for page, file, _ in pictures() if page == "README.md"] == ["cluster"]


def test_the_states_of_a_connection_are_drawn_as_they_are() -> None:
    figure = described("connection")
    assert isinstance(figure, Boxes)
    assert {(arrow.source, arrow.target) for arrow in figure.arrows} == {
        (before.name, after.name)
        for before, following in FOLLOWING.items()
        for after in following - {before, State.ENDED}
    }


@pytest.mark.parametrize("scheme", PALETTES)
def test_colours_contrast(scheme: str) -> None:
    palette = PALETTES[scheme]
    for pairs, least in ((TEXTS, TEXT_CONTRAST), (LINES, LINE_CONTRAST)):
        for one, other in pairs:
            assert contrast(palette[one], palette[other]) >= least, (one, other)


def contrast(one: str, other: str) -> float:
    """The ratio of the luminances of two colours, as WCAG defines it."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# -- what is refused ---------------------------------------------------------------------------


def figure(boxes: dict[str, Box], *arrows: Arrow, frames: dict[str, Frame] | None = None) -> Boxes:
    return Boxes("title", "description", boxes, list(arrows), frames or {})


def box(column: float, row: int, *text: str) -> Box:
    return Box((column, row), list(text or ("box",)))


def refusal(of: Boxes) -> str:
    with pytest.raises(FigureError) as refused:
        drawn(of)
    return str(refused.value)


def test_a_word_that_does_not_fit_is_refused() -> None:
    assert "wider than" in refusal(figure({"one": box(0, 0, "w" * 40)}))


def test_boxes_in_one_place_are_refused() -> None:
    assert "in one place" in refusal(figure({"one": box(0, 0), "two": box(0.5, 0)}))


def test_an_arrow_through_a_box_is_refused() -> None:
    boxes = {"one": box(0, 0), "between": box(0, 1), "two": box(0, 2)}
    assert "meets between" in refusal(figure(boxes, Arrow("one", "two")))


def test_an_arrow_to_nothing_is_refused() -> None:
    assert "no box 'two'" in refusal(figure({"one": box(0, 0)}, Arrow("one", "two")))


def test_a_text_upon_another_one_is_refused() -> None:
    boxes = {"one": box(0, 0), "two": box(0, 1)}
    arrows = [
        Arrow("one", "two", "here", leave=("bottom", at), text_side="right") for at in (0.4, 0.45)
    ]
    assert "no room for 'here'" in refusal(figure(boxes, *arrows))


def test_a_text_upon_the_border_of_a_frame_is_refused() -> None:
    boxes = {"one": box(0, 0), "two": box(0, 1)}
    frames = {"room": Frame(["one"])}
    arrow = Arrow("one", "two", "here", text_at=0.3)
    assert "no room for 'here'" in refusal(figure(boxes, arrow, frames=frames))


def test_an_arrow_ends_at_a_box() -> None:
    boxes = {"one": box(0, 0), "two": box(1, 1)}
    root = parsed(drawn(figure(boxes, Arrow("one", "two"))))
    two = root.findall(f"{SVG}rect")[-1]
    (tip,) = root.findall(f"{SVG}polygon")
    x, y = (float(value) for value in tip.get("points", "").split()[0].split(","))
    left, width = float(two.get("x", "")), float(two.get("width", ""))
    assert (x, y) == (left + width / 2, float(two.get("y", "")))


def test_a_lane_that_is_not_there_is_refused() -> None:
    with pytest.raises(FigureError, match="no lane 'b'"):
        drawn(Sequence("title", "description", ["a"], [Step("text", "a", "b")]))
