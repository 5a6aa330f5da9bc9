"""Draws all figures of the documentation."""

from __future__ import annotations

import sys

import msgspec

from tests.docs.figures import FIGURES, described, drawn, names
from tests.docs.figures.parts import FigureError


def main() -> None:
    """Write each figure, or end with what is wrong with one."""
    for name in names():
        try:
            svg = drawn(described(name))
        except (FigureError, msgspec.DecodeError) as error:
            sys.exit(f"docs/figures/{name}.toml: {error}")
        (FIGURES / f"{name}.svg").write_text(svg)


main()
