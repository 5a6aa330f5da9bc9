"""The examples in docstrings do what they show; those of the guide need a server."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import streamd.state

MODULES = sorted(
    each.name
    for each in pkgutil.walk_packages(streamd.state.__path__, "streamd.state.")
    if not each.ispkg
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
