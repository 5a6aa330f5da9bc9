"""Lists the streams of a subscription, a page at a time and in the order of their keys.

They come from three places: the rows of linked streams, those in memory before those in the store;
the streams that the subscription names, whether they exist or not; and the streams that its pattern
matches and that were not written since it was made, so that they are not linked yet (`links`).
Everything that is listed is a candidate: only the stream's own row says what is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from heapq import merge
from itertools import islice
from typing import NamedTuple

import msgspec

from streamd.streams import keys
from streamd.streams.model import Stream
from streamd.streams.offsets import START, Position
from streamd.streams.subscriptions import globs, links
from streamd.streams.subscriptions.model import Subscription
from streamd.streams.subscriptions.paths import key_of, path_of
from streamd.streams.subscriptions.webhook_texts import NotifiedStream
from streamd.streams.tables import KeyValue

# How many streams are looked at for a page, most of which a pattern may not match.
MAX_LOOKED_AT = 10_000
_ROWS_AT_ONCE = 256


class LinkedStream(NamedTuple):
    """A stream of a subscription, as answers and notifications show it.

    Everything before `acked` is acknowledged. A stream that does not exist has nothing.
    """

    key: bytes
    link_type: str
    acked: Position
    tail: Position
    has_pending: bool

    @property
    def path(self) -> str:
        return path_of(self.key)

    @property
    def notified(self) -> NotifiedStream:
        """As the protocol shows it (section 7.1)."""
        return NotifiedStream(
            self.path,
            self.link_type,
            self.acked.token().decode(),
            self.tail.token().decode(),
            self.has_pending,
        )


class LinkedPage(msgspec.Struct):
    """Streams of a subscription, and the key to continue after; None at the end."""

    streams: list[LinkedStream]
    cursor: bytes | None = None


class Candidates(NamedTuple):
    """Keys of streams that may belong to a page, and where the search has ended, if not at the
    end."""

    keys: list[bytes]
    cursor: bytes | None = None


class LinkQuery(NamedTuple):
    """What a page is made from: a copy of what memory has, so that a thread can read the store.

    `unstored` are the rows of the letter that the store may not have right. With a `pattern`
    streams that are not linked are looked for too.
    """

    letter: bytes
    number: int
    unstored: Mapping[bytes, bool]
    named: Sequence[bytes] = ()
    pattern: str = ""
    after: bytes = b""
    limit: int = 1_000


def candidates(store: KeyValue, query: LinkQuery) -> Candidates:
    """The keys of a page, at most `limit`. Blocks."""
    sources = [
        _linked(store, query),
        ((key, True) for key in sorted(query.named) if key > query.after),
        _matching(store, query) if query.pattern else iter(()),
    ]
    found: list[bytes] = []
    for key, is_candidate in merge(*sources):
        if found and key == found[-1]:
            continue
        if not is_candidate or len(found) == query.limit:
            # The search ends here: every source has been read up to this key.
            return Candidates(found, key if not is_candidate else found[-1])
        found.append(key)
    return Candidates(found)


def _linked(store: KeyValue, query: LinkQuery) -> Iterator[tuple[bytes, bool]]:
    """The streams that have a row."""
    unstored = query.unstored
    new = sorted(key for key, exists in unstored.items() if exists and key > query.after)
    stored = (key for key in _stored(store, query) if key not in unstored)
    return ((key, True) for key in merge(stored, new))


def _stored(store: KeyValue, query: LinkQuery) -> Iterator[bytes]:
    start, stop = keys.id_range(query.letter, query.number)
    if query.after:
        start = keys.of_subscription(query.letter, query.number, query.after + b"\0")
    for row in _rows(store, start, stop):
        yield keys.stream_in(row)[1]


def _rows(store: KeyValue, start: bytes, stop: bytes) -> Iterator[bytes]:
    while rows := store.scan(start, stop, limit=_ROWS_AT_ONCE):
        yield from (row for row, _ in rows)
        start = rows[-1][0] + b"\0"


def _matching(store: KeyValue, query: LinkQuery) -> Iterator[tuple[bytes, bool]]:
    """The stored streams that the pattern matches, and after `MAX_LOOKED_AT` streams a place that
    is not a candidate: the search has ended there."""
    index = globs.PatternIndex()
    index.add(query.number, query.pattern)
    looked_at, key = 0, b""
    for key in islice(_stored_in_ranges(store, query), MAX_LOOKED_AT):
        looked_at += 1
        if index.matching(path_of(key)):
            yield key, True
    if looked_at == MAX_LOOKED_AT:
        # Not `key` itself: if it is a candidate it belongs to this page.
        yield key + b"\0", False


def _stored_in_ranges(store: KeyValue, query: LinkQuery) -> Iterator[bytes]:
    """The keys of the stored streams where those are that the pattern can match."""
    for start, stop in sorted(_ranges(query.pattern)):
        if query.after:
            start = max(start, keys.STREAM + query.after + b"\0")
        if start < stop:
            yield from (row[1:] for row in _rows(store, start, stop))


def _ranges(pattern: str) -> Iterator[tuple[bytes, bytes]]:
    """The half-open ranges of the rows of streams that a pattern can match."""
    beginning, is_all = globs.literal_beginning(pattern)
    if not beginning:
        yield keys.STREAM, keys.end_of(keys.STREAM)
        return
    row = keys.STREAM + key_of(beginning)
    yield row, row + b"\0"
    if not is_all:
        bucket, _, name = beginning.encode().partition(b"/")
        yield keys.stream_range(bucket, name + b"/" if name else b"", b"")


def shown(
    key: bytes, stream: Stream | None, subscription: Subscription, named: Set[bytes], now_ms: int
) -> LinkedStream | None:
    """The present state of a candidate; None if the subscription does not have it."""
    is_named = key in named
    if stream is None or stream.deleted or stream.expired(now_ms):
        return LinkedStream(key, "explicit", START, START, False) if is_named else None
    link = links.find(stream, subscription.number)
    if link is not None:
        acked = Position(link.acked_record, link.acked_byte)
        return LinkedStream(key, link.link_type, acked, stream.tail, link.is_pending)
    if key == subscription.config.wake_key:
        return None
    # It is linked when it is next written, where it ends now.
    pattern = subscription.config.pattern
    if not is_named and not (pattern and globs.matches(pattern, path_of(key))):
        return None
    kind = "explicit" if is_named else "glob"
    return LinkedStream(key, kind, stream.tail, stream.tail, False)
