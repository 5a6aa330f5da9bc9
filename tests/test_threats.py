"""The threat table of docs/security.md names tests that exist, for each of its rows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "security.md"
_NAMED = re.compile(r"`([a-z_0-9/]+\.py)::(test_\w+)`")


def rows() -> list[str]:
    """The table's rows, without their heads."""
    section = PAGE.read_text().partition("\n## Threats\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith(("| wants ", "| --- "))]


def functions_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in tree.body if isinstance(node, kinds)}


def test_there_are_threats_of_many_kinds() -> None:
    assert len(rows()) > 35


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split(" | ")[0].strip("| "))
def test_each_threat_has_an_answer_and_tests_that_exist(row: str) -> None:
    wanted, answer, tests = (cell.strip() for cell in row.strip("|").split(" | "))
    assert wanted
    assert answer
    named = _NAMED.findall(tests)
    assert named
    assert not re.sub(r"[\s,|]", "", _NAMED.sub("", tests)), "each test is FILE::NAME"
    for file, name in named:
        assert name in functions_in(TESTS / file), f"{file} has no {name}"
