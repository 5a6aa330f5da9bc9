"""The entries of archived segments, as tests compare them."""

from __future__ import annotations

from streamd.objectstore.segments import read_entries
from streamd.raft.messages import Entry


def entries_of(content: bytes) -> list[Entry]:
    """The entries of a whole segment, in order; raises as `read_entries` does."""
    return [entry for entry, _ in read_entries(content)]
