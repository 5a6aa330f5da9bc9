"""Bytes that cannot be decoded are an answer, wherever they come from, never a crash.

`msgspec` raises `UnicodeDecodeError` for text that is not UTF-8, and `RecursionError` for arrays
nested too deep, besides its own `DecodeError`: a handler of that one alone lets two pass.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "streamd"
ALL_OF_THEM = {"DecodeError", "UnicodeDecodeError"}


def caught(node: ast.Try | ast.With) -> set[str]:
    """The names in what a `try` or a ``with suppress(…)`` catches."""
    found: list[ast.expr | None] = []
    if isinstance(node, ast.Try):
        found += [handler.type for handler in node.handlers]
    else:
        found += [item.context_expr for item in node.items if "suppress" in ast.dump(item)]
    inner = (part for each in found if each is not None for part in ast.walk(each))
    return {
        part.attr if isinstance(part, ast.Attribute) else part.id
        for part in inner
        if isinstance(part, ast.Attribute | ast.Name)
    }


def too_few(source: str) -> Iterator[int]:
    """The lines of those that catch one of the errors without the others."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Try | ast.With):
            names = caught(node)
            if "DecodeError" in names and not names >= ALL_OF_THEM:
                yield node.lineno


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: file.stem)
def test_a_handler_of_decoding_errors_catches_them_all(file: Path) -> None:
    assert list(too_few(file.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "try:\n  f()\nexcept msgspec.DecodeError:\n  pass",
        "try:\n  f()\nexcept (msgspec.DecodeError, OSError):\n  pass",
        "with suppress(msgspec.DecodeError):\n  f()",
    ],
)
def test_a_handler_of_one_error_is_found(source: str) -> None:
    assert list(too_few(source)) == [1]


@pytest.mark.parametrize(
    "source",
    [
        "try:\n  f()\nexcept UNDECODABLE:\n  pass",
        "try:\n  f()\nexcept UnicodeDecodeError:\n  pass\nexcept msgspec.DecodeError:\n  pass",
        "with suppress(OSError):\n  f()",
    ],
)
def test_a_handler_of_all_of_them_passes(source: str) -> None:
    assert list(too_few(source)) == []
