"""One bucket: whether it exists, and how many streams it counts (docs/buckets-design.md).

Scopes are replayed as if every bucket existed, because clients make streams where buckets are. What
was made and ended then shows when buckets existed, and commands that found none are replayed with
that knowledge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from streamd_audit.replay.ids import Place
from streamd_audit.replay.plan import FIRST_STATE
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

    @property
    def told(self) -> tuple[int, int, int] | None:
        """When it was created, its streams, and the hidden ones; None if it does not exist."""
        return (self.created_ms, self.streams, self.hidden) if self.is_there else None

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


class Told(NamedTuple):
    """The `result` of a command at a place; or, without a position, that the state as of entry
    `index` differs."""

    index: int  # type: ignore[assignment]  # of NamedTuple
    position: int | None
    result: str
    expected: str | None = None
    found: str | None = None


Event = tuple[int, int, int, int | None, int | None, int | None]
"""Index, position, what happens, at which log time; for a row of a state, its `op` in `run`, when
the bucket was created, and its streams and hidden ones."""
_GONE = 3
# The rows of the first state come before any command.
_BEFORE_ALL = -1


def follow(events: Iterable[Event], states: Sequence[Place]) -> Iterator[Told]:
    """What happens to one bucket, in the order of the log, and where states differ from it.

    A scope's event is its number times 8 and what it is; the events of one command come in order.
    """
    bucket = Bucket()
    said: tuple[int | None, ...] | None = None
    is_changed, following = False, 0

    def compared(place: Place) -> Iterator[Told]:
        nonlocal is_changed, following
        while following < len(states) and states[following] < place:
            by_log = bucket.told
            if is_changed and by_log != said:
                yield Told(states[following][0], None, "", _text(by_log), _text(said))
            is_changed = False
            following += 1

    for index, position, event, log_ms, streams, hidden in events:
        yield from compared((index, position))
        is_changed = is_changed or position != _BEFORE_ALL
        if position >= FIRST_STATE:
            said = None if event == _GONE else (log_ms, streams, hidden)
            continue
        if position == _BEFORE_ALL:
            said = log_ms, streams, hidden
            bucket.begin(log_ms or 0, streams or 0, hidden or 0)
            continue
        kind = event % 8
        result = bucket.tell(kind, log_ms or 0)
        if result is not None:
            yield Told(index, position, "absent" if kind == ASKED else result)
    yield from compared((2**63, 0))


def _text(bucket: tuple[int | None, ...] | None) -> str:
    if bucket is None:
        return "no such bucket"
    created_ms, streams, hidden = bucket
    return f"{streams} streams, {hidden} of them hidden, made at {created_ms}"
