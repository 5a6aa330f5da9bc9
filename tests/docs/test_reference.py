"""The pages of docs/reference are those that are generated, and complete."""

from __future__ import annotations

import re

from tests.docs.reference import DIRECTORY, pages
from tests.test_config import SAMPLE


def test_the_pages_are_those_of_the_generator() -> None:
    """`make fix` writes them."""
    assert {path.name: path.read_text() for path in DIRECTORY.iterdir()} == pages()


def test_each_key_of_the_sample_is_on_the_page_of_the_configuration() -> None:
    keys = re.findall(r"^(?:# )?([a-z][a-z0-9_]*) = ", SAMPLE.read_text(), re.MULTILINE)
    rows = re.findall(r"^\| `([a-z0-9_]+)` \|", pages()["configuration.md"], re.MULTILINE)
    assert rows == keys
