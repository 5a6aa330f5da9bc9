"""Fixtures of the control of hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.programs import Programs


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Programs that are found before those of the machine."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return Programs(directory)
