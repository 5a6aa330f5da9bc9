"""The targets of the fuzzer hold for their seeds and for random changes of them, and the fuzzer
finds a bug that was planted."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.targets import TARGETS
from tests.support.seeds import first_seed

_CHANGES = 2000
_PIECES = (b"%2f", b"%2E", b"..", b"/", b"\0", b"*", b",", b"=", b"\r\n", b"\xff")


def changed(data: bytes, random: Random) -> bytes:
    """The bytes with a few of them replaced, removed, added, or swapped for bytes of weight."""
    found = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(found) + 1)
        piece = random.choice(
            (b"%2f", b"%2E", b"..", b"/", b"\0", b"*", b",", b"=", b"\r\n", b"\xff")
        )
        found[at : at + random.randrange(3)] = random.choice((piece, random.randbytes(1), b""))
    return bytes(found)


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_keeps_its_promises_for_changes_of_its_seeds(name: str) -> None:
    random = Random(first_seed())
    target = TARGETS[name]
    for seed in target.seeds:
        target.run(seed)
        data = seed
        for number in range(_CHANGES):
            data = changed(seed if number % 5 == 0 else data, random)
            target.run(data)


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="`make fuzz` installs it")
def test_a_planted_bug_is_found(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "path", "--plant", "-seed=1", "-max_total_time=60"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        timeout=120,
    )
    assert ran.returncode != 0
    assert b"AssertionError" in ran.stdout + ran.stderr
    assert list((tmp_path / "build" / "fuzz").glob("crash-path-*"))
