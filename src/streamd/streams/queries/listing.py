"""Listing buckets and the streams of one, a page at a time, straight from the store.

A page costs one seek and as many rows as it shows, wherever in the bucket it lies, and keeps only
what it shows of the rows. The store lags the state by the changes that wait to be stored: the
caller makes sure that the store has what the page must show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from streamd.auth.scopes import NamePattern
from streamd.streams import keys
from streamd.streams.model import Bucket, Stream
from streamd.streams.offsets import Position
from streamd.streams.tables import KeyValue

# Up to this many rows per page that show nothing, such as those of deleted streams kept for forks,
# are skipped; the rest of the page is left to the next one.
MAX_ROWS = 10_000
_ROWS_AT_ONCE = 256
# A row has a few hundred bytes, except for streams at the end of long chains of forks.
_BYTES_AT_ONCE = 1024 * 1024

_BUCKET_DECODER = msgspec.msgpack.Decoder(Bucket)
_STREAM_DECODER = msgspec.msgpack.Decoder(Stream)


class ListQuery(msgspec.Struct, frozen=True):
    """Up to `limit` streams whose names begin with `prefix`, from the first after `after` on, as
    far as a pattern in `within` matches them. The patterns are in order and do not overlap."""

    bucket: bytes
    prefix: bytes = b""
    after: bytes = b""
    limit: int = 1000
    within: tuple[NamePattern, ...] = (NamePattern(b"", True),)

    def ranges(self) -> Iterator[tuple[bytes, bytes]]:
        """The half-open ranges of rows to look at, in order."""
        for name, is_prefix in _wanted(self.prefix, self.after, self.within):
            if is_prefix:
                yield from _if_any(*keys.stream_range(self.bucket, name, self.after))
            else:
                yield _only(keys.STREAM + keys.stream_key(self.bucket, name))


class BucketQuery(msgspec.Struct, frozen=True):
    """A query for a list of buckets, like `ListQuery` for streams."""

    prefix: bytes = b""
    after: bytes = b""
    limit: int = 1000
    within: tuple[NamePattern, ...] = (NamePattern(b"", True),)

    def ranges(self) -> Iterator[tuple[bytes, bytes]]:
        """The half-open ranges of rows to look at, in order."""
        for name, is_prefix in _wanted(self.prefix, self.after, self.within):
            if is_prefix:
                yield from _if_any(*keys.bucket_range(name, self.after))
            else:
                yield _only(keys.BUCKET + name)


def _only(row: bytes) -> tuple[bytes, bytes]:
    """The range of a single row."""
    return row, row + b"\0"


def _if_any(start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    """A range, unless it is empty."""
    if start < stop:
        yield start, stop


def _wanted(prefix: bytes, after: bytes, within: Iterable[NamePattern]) -> Iterator[NamePattern]:
    """The names with a prefix that a pattern in `within` matches; those that single names in it
    match come after `after`."""
    for pattern in within:
        # If a name begins with two prefixes, the longer begins with the shorter.
        longer = max(prefix, pattern.text, key=len)
        if not longer.startswith(prefix):
            continue
        if pattern.is_prefix:
            if longer.startswith(pattern.text):
                yield NamePattern(longer, True)
        elif longer == pattern.text > after:
            yield pattern


class Listed(msgspec.Struct, frozen=True, gc=False):
    """A page's entry for a stream. `expiry_ms` is when it ends, as far as the store knows."""

    name: bytes
    content_type: str
    tail: Position
    closed: bool
    created_ms: int
    last_write_ms: int
    expiry_ms: int | None
    stream_id: int


class ListedBucket(msgspec.Struct, frozen=True, gc=False):
    """A page's entry for a bucket. `streams` does not count deleted ones kept for forks."""

    name: bytes
    streams: int
    created_ms: int


class BucketPage(msgspec.Struct):
    """Buckets in the order of their names, and whether more follow."""

    buckets: list[ListedBucket]
    has_more: bool = False


class Page(msgspec.Struct):
    """Streams in the order of their names.

    `cursor` is the name to continue after, None if no more names follow. `over` are the names of
    skipped streams whose time has come. `rows` is how many rows the page took.
    """

    streams: list[Listed]
    over: list[bytes]
    cursor: bytes | None = None
    has_more: bool = False
    rows: int = 0


def list_buckets(store: KeyValue, query: BucketQuery) -> BucketPage:
    """The page that `query` asks for, shorter than asked for only at the end. Blocks."""
    page = BucketPage([])
    for row, raw in chain.from_iterable(_rows(store, query.ranges(), query.limit)):
        if len(page.buckets) == query.limit:
            page.has_more = True
            break
        bucket = _BUCKET_DECODER.decode(raw)
        streams = bucket.streams - bucket.hidden
        page.buckets.append(ListedBucket(row[1:], streams, bucket.created_ms))
    return page


def _rows(
    store: KeyValue, ranges: Iterable[tuple[bytes, bytes]], limit: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """The rows in these ranges, a few at a time: first those of a page of `limit`."""
    for start, stop in ranges:
        wanted = min(limit + 1, _ROWS_AT_ONCE)
        while rows := store.scan(start, stop, limit=wanted, max_bytes=_BYTES_AT_ONCE):
            yield rows
            start = rows[-1][0] + b"\0"
            wanted = min(wanted * 2, _ROWS_AT_ONCE)


def list_streams(store: KeyValue, query: ListQuery, log_ms: int) -> Page:
    """The page that `query` asks for, without streams that are deleted or have ended at `log_ms`.

    It is shorter than asked for only at the end, or after `MAX_ROWS` rows. Blocks.
    """
    page = Page([], [])
    for rows in _rows(store, query.ranges(), query.limit):
        page.rows += len(rows)
        for row, raw in rows:
            if not _take(page, query.limit, keys.name_of(row), raw, log_ms):
                page.has_more = True
                return page
        if page.rows >= MAX_ROWS:
            page.has_more = True
            page.cursor = keys.name_of(rows[-1][0])
            return page
    return page


def _take(page: Page, limit: int, name: bytes, raw: bytes, log_ms: int) -> bool:
    """Put a stream on the page, or skip it; False if the page is full."""
    stream = _STREAM_DECODER.decode(raw)
    if stream.deleted:
        return True
    if stream.expired(log_ms):
        page.over.append(name)
        return True
    if len(page.streams) == limit:
        return False
    page.cursor = name
    page.streams.append(
        Listed(
            name,
            stream.content_type,
            stream.tail,
            stream.closed,
            stream.created_ms,
            stream.last_write_ms,
            stream.expiry_ms(),
            stream.stream_id,
        )
    )
    return True
