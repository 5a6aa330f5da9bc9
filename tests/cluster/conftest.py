"""Machines in virtual time that share a cold store in a directory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.sim.runtime import run_virtually
from tests.support.archived import cold_in
from tests.support.flaky_store import FlakyStore
from tests.support.machines import Play, play


@pytest.fixture
def store(tmp_path: Path) -> FlakyStore:
    return cold_in(tmp_path / "cold")[1]


@pytest.fixture
def play_with_store(tmp_path: Path, store: FlakyStore) -> Play:
    return lambda scenario: run_virtually(1, partial(play, scenario, tmp_path, store=store))
