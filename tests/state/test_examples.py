"""The examples of the guide and of the docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import streamd.state

GUIDE = Path(__file__).parents[2] / "docs" / "state.md"
MODULES = sorted(
    each.name for each in pkgutil.walk_packages(streamd.state.__path__, "streamd.state.")
)


def test_the_examples_of_the_guide_are_true() -> None:
    found = doctest.testfile(str(GUIDE), module_relative=False, encoding="utf-8")
    assert found.attempted > 10
    assert found.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
