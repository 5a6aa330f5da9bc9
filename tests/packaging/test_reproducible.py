"""Two builds of one tree of sources give the same bytes."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from tests.packaging.conftest import Built, build

pytestmark = pytest.mark.long


def hashes(built: Built) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in built if not path.is_dir()}


def test_a_second_build_elsewhere_gives_the_same_bytes(built: Built, tmp_path: Path) -> None:
    assert hashes(build(tmp_path)) == hashes(built)
