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
    """By somebody who keeps new files to themselves, which must not get into the packages."""
    assert hashes(build(tmp_path, umask="077")) == hashes(built)
