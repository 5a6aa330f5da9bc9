"""What the tests of the stores share."""

from __future__ import annotations

import pytest

from tests.storage import images


@pytest.fixture(params=images.ENGINES)
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test of what every log does over each engine; its name."""
    name: str = request.param
    monkeypatch.setattr(images, "chosen_engine", images.ENGINES[name])
    return name
