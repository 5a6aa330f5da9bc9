"""The scripts say what the core does, step by step.

`REWRITE=1 pytest tests/raft/test_scripts.py` writes down what it does now instead; read the
difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.raft.scripted import SEPARATOR, Script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


def played(text: str) -> str:
    """The script with the answers its commands give when carried out."""
    script = Script()
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        source = block.split(f"\n{SEPARATOR}")[0].splitlines()
        answers = [
            line
            for command in source
            if not command.startswith("#")
            for line in script.run(command)
        ]
        blocks.append("\n".join(source + ([SEPARATOR, *answers] if answers else [])))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_plays_as_written(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# "), "a script begins by saying what it shows"
    result = played(text)
    if os.environ.get("REWRITE"):
        path.write_text(result)
    assert path.read_text() == result


def test_a_script_whose_answers_differ_is_noticed() -> None:
    text = "# Wrong on purpose.\n\nnodes 1\nstatus\n----\n1: LEADER\n"
    assert played(text) != text
    assert "CANDIDATE" in played(text)
