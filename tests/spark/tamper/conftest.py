"""Two clusters' stores, grown once for all tests here."""

from __future__ import annotations

import pytest
import trio

from tests.spark.tamper.stores import Grown, grow, grow_other


@pytest.fixture(scope="package")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grown, Grown]:
    """A cluster's store, and another's."""
    grown = trio.run(grow, tmp_path_factory.mktemp("grown"))
    return grown, trio.run(grow_other, tmp_path_factory.mktemp("other"))
