"""One bucket: whether it exists, and how many streams it counts (docs/buckets-design.md).

Scopes are replayed as if every bucket existed, because clients make streams where buckets are. What
was made and ended then shows when buckets existed, and commands that found none are replayed with
that knowledge.
"""

from __future__ import annotations

from streamd_audit.replay.results import BUCKET_NOT_FOUND, CREATED, DELETED

BUCKET_EXISTS, BUCKET_NOT_EMPTY = "bucket-exists", "bucket-not-empty"

# What happens in a bucket; the events of one command come in this order. A command asks whether the
# bucket exists; a row of a stream is made, hidden (only its forks keep it), removed.
ASKED, BUCKET_CREATED, BUCKET_DELETED, MADE, HIDDEN, REMOVED, HIDDEN_REMOVED = range(7)


class Bucket:
    """Follows everything that happens in the bucket, in the order of the log."""

    __slots__ = ("created_ms", "hidden", "is_there", "streams")

    def __init__(self) -> None:
        self.is_there = False
        self.created_ms = self.streams = self.hidden = 0

    def begin(self, created_ms: int, streams: int, hidden: int) -> None:
        """Continue from a state."""
        self.is_there = True
        self.created_ms, self.streams, self.hidden = created_ms, streams, hidden

    def tell(self, event: int, log_ms: int) -> str | None:
        """The outcome of the command; None for an event that cannot be refused."""
        if event == ASKED:
            return None if self.is_there else BUCKET_NOT_FOUND
        if event == BUCKET_CREATED:
            if self.is_there:
                return BUCKET_EXISTS
            self.begin(log_ms, 0, 0)
            return CREATED
        if event == BUCKET_DELETED:
            if not self.is_there:
                return BUCKET_NOT_FOUND
            if self.streams:
                return BUCKET_NOT_EMPTY
            self.is_there = False
            return DELETED
        if event == MADE:
            if not self.is_there:
                self.begin(log_ms, 0, 0)
            self.streams += 1
        elif event == HIDDEN:
            self.hidden += 1
        else:
            self.streams -= 1
            self.hidden -= event == HIDDEN_REMOVED
        return None
