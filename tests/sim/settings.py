"""Limits so small that a run of seconds reaches them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

import pytest

_CHOICES = {
    "group.state_flusher.CHECKPOINT_BYTES": (2_000, 8_000, 1 << 25),
    "group.group.MAX_BATCH_COMMANDS": (1, 3, 1024),
    "group.forwarding.MAX_FORWARDS": (1, 16),
    "group.state_flusher.FLUSH_BYTES": (500, 1 << 22),
    "storage.raft_snapshots.PIECE_BYTES": (100, 1000, 1 << 21),
    "storage.journal.MAX_BYTES": (1 << 14, 1 << 23),
}


@contextmanager
def small_limits(random: Random, given: Mapping[str, float]) -> Iterator[None]:
    """Logs are compacted, Raft snapshots have several pieces, batches split. The limits differ by
    seed; `given` overrides them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, choices in _CHOICES.items():
            patch.setattr(f"streamd.{name}", random.choice(choices))
        for name, value in given.items():
            patch.setattr(f"streamd.{name}", value)
        yield
