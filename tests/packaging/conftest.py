"""What the tests of packages share: the wheels and the archive of the sources, built once."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.packaging.installed import ROOT, output
from tests.support.tools import BUILDING, skip_without


class Wheels(NamedTuple):
    server: Path
    client: Path
    sources: Path


def build_wheels(directory: Path) -> Wheels:
    """What `make wheels` builds. Skips the test where the extra `release` is not installed."""
    if find_spec("build") is None:
        skip_without(BUILDING)
    output("make", "wheels", f"DIST={directory}", f"VENV={sys.prefix}", cwd=ROOT)
    built = {path.name.split("-")[0] + path.suffix: path for path in directory.iterdir()}
    names = ("durable_streamd.whl", "durable_streamd_client.whl", "durable_streamd.gz")
    assert built.keys() == set(names)
    return Wheels(*(built[name] for name in names))


@pytest.fixture(scope="package")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    return build_wheels(tmp_path_factory.mktemp("dist"))
