"""The runbook's two tables lead to each of its sections, by commands that exist."""

from __future__ import annotations

import re

import click
import pytest

from streamd.commands.cli import main
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/operations.md").read_text()
TABLES = PAGE[PAGE.index("## By task") : PAGE.index("## Starting one")]
COMMANDS = sorted(set(re.findall(r"`streamd ([a-z][^`]*)`", TABLES)))


def test_each_section_is_found_by_a_task_or_a_symptom() -> None:
    beside_blocks = re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^## (.+)$", beside_blocks, re.MULTILINE)
    sections = {re.sub(r"[^a-z ]", "", title.lower()).replace(" ", "-") for title in titles}
    linked = set(re.findall(r"\(#([a-z-]+)\)", TABLES))
    assert sections - linked == {"by-task", "by-symptom"}


@pytest.mark.parametrize("words", COMMANDS)
def test_each_command_of_the_tables_exists(words: str) -> None:
    command: click.Command = main
    for word in words.split():
        if word.startswith("--"):
            assert word in {option for one in command.params for option in one.opts}
            continue
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
