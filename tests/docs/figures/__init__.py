"""Draws the figures of the documentation: each `docs/figures/NAME.toml` as `NAME.svg` beside it.

`python -m tests.docs.figures` draws all of them; a test compares. `boxes` and `sequence` have the
two kinds of figures, and what their descriptions may say, `parts` what both have in common.
`docs/decisions/043-figures-are-drawn-by-our-own-program.md` says why.
"""

from __future__ import annotations

import msgspec

from tests.docs.figures.boxes import Boxes, draw_boxes
from tests.docs.figures.sequence import Sequence, draw_sequence
from tests.docs.pages import ROOT

FIGURES = ROOT / "docs" / "figures"


def described(name: str) -> Boxes | Sequence:
    """The description of a figure. Raises `msgspec.DecodeError`, if it says what none has."""
    text = (FIGURES / f"{name}.toml").read_bytes()
    return msgspec.toml.decode(text, type=Boxes | Sequence)


def drawn(figure: Boxes | Sequence) -> str:
    """The SVG of a figure. Raises `FigureError` if it cannot be drawn as it is described."""
    return draw_boxes(figure) if isinstance(figure, Boxes) else draw_sequence(figure)


def names() -> list[str]:
    """The figures that are described."""
    return sorted(path.stem for path in FIGURES.glob("*.toml"))
