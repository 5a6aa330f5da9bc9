"""Limits made so small that a run of seconds reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest


@contextmanager
def small_limits(random: Random) -> Iterator[None]:
    """Logs are cut, snapshots have pieces, batches split; how much of it differs by seed."""
    with pytest.MonkeyPatch.context() as patch:
        group = "streamd.group."
        patch.setattr("streamd.storing.CHECKPOINT_BYTES", random.choice((2_000, 8_000, 1 << 25)))
        patch.setattr(group + "MAX_BATCH_COMMANDS", random.choice((1, 3, 1024)))
        patch.setattr(group + "MAX_FORWARDS", random.choice((1, 16)))
        patch.setattr("streamd.storing.FLUSH_BYTES", random.choice((500, 1 << 22)))
        patch.setattr("streamd.storage.snapshots.PIECE_BYTES", random.choice((100, 1000, 1 << 21)))
        yield
