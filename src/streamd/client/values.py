"""What the client returns."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec

from streamd.streams.content import UNDECODABLE, is_json

START = "-1"
NOW = "now"


class StreamInfo(NamedTuple):
    """What a stream is and where it ends.

    `is_new` is whether this request created the stream, `write_fence` whether only the worker that
    holds a wake may write to it. Offsets are opaque texts that sort.
    """

    content_type: str
    next_offset: str
    closed: bool
    etag: str | None = None
    ttl_s: int | None = None
    expires_at: str | None = None
    snapshot_offset: str | None = None
    earliest_offset: str | None = None
    is_new: bool = False
    write_fence: bool = False


class Appended(NamedTuple):
    """Where the stream ends after an append, its state for `if_match`, and whether it is closed.

    `is_new` is False if the append had been stored under the same key before (`once`), perhaps by
    a try of the same call whose answer was lost.
    """

    next_offset: str
    etag: str | None
    closed: bool
    is_new: bool = True


class Chunk(NamedTuple):
    """Part of a stream, and the offset where the next part begins.

    `up_to_date` is whether the stream ended here when the server answered, `closed` whether it
    ends here for good. A chunk without data tells only these.
    """

    content_type: str
    data: bytes
    next_offset: str
    up_to_date: bool = False
    closed: bool = False

    @property
    def empty(self) -> bool:
        """Whether it has no data: in JSON streams, no messages."""
        return not self.data or (is_json(self.content_type) and self.data.strip() == b"[]")

    def json(self) -> list[Any]:
        """The messages of a JSON stream. Raises `ValueError` for other data."""
        found = decode(self.data) if self.data else []
        if not isinstance(found, list):
            raise ValueError("the data is JSON, but not an array")
        return found


class Snapshot(NamedTuple):
    """A stream's summary up to `offset`; without one, `offset` is "-1" and `data` empty."""

    offset: str
    content_type: str
    data: bytes

    def json(self) -> Any:
        """The value of a snapshot in JSON; None without a snapshot. Raises `ValueError`."""
        return decode(self.data) if self.data else None


class Bootstrap(NamedTuple):
    """A stream's snapshot, the messages after it, and where to follow from."""

    snapshot: Snapshot
    content_type: str
    messages: list[bytes]
    next_offset: str

    def json(self) -> list[Any]:
        """The messages of a JSON stream. Raises `ValueError`."""
        return [decode(message) for message in self.messages]


class BucketInfo(msgspec.Struct, frozen=True):
    """A bucket: how many streams it has, and when it was created."""

    bucket_id: str
    streams: int
    created_at_ms: int


class ListedStream(msgspec.Struct, frozen=True):
    """A stream in a listing. `path` reaches it whatever its name; `tail_offset` counts bytes."""

    stream_id: str
    status: str
    content_type: str
    tail_offset: int
    next_offset: str
    created_at_ms: int
    last_write_at_ms: int
    path: str
    etag: str


def decode(data: bytes) -> Any:
    """The value of a JSON text. Raises `ValueError`."""
    try:
        return msgspec.json.decode(data)
    except UNDECODABLE:
        pass
    try:
        return json.loads(data)  # it takes lone surrogates, which are JSON (RFC 8259 section 8.2)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
