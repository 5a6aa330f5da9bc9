"""One stream: each operation as a flow, with the checks that need no server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streamd.client.core import operations, reading
from streamd.client.core.messages import Form, Place, messages
from streamd.client.core.operations import (
    MAX_FRAMES,
    frames,
    json_array,
    json_body,
    lifetime,
    write_headers,
)
from streamd.client.core.reading import Live
from streamd.client.core.retrying import Session
from streamd.client.core.steps import Flow
from streamd.client.errors import Refused, is_unknown_route, refusal
from streamd.client.names import StreamName, parse_name
from streamd.client.values import Appended, Chunk, StreamInfo
from streamd.protocol.headers import (
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
    STREAM_FORK_OFFSET,
    STREAM_FORK_SUB_OFFSET,
    STREAM_FORKED_FROM,
    STREAM_SEQ,
    WRITE_FENCE,
)
from streamd.streams.content import JSON, is_json

Data = bytes | str
# A key, or a producer's id with the number of this append.
Once = str | tuple[str, int]
_BYTES = (bytes, bytearray, memoryview)


class StreamFlows:
    """The flows of one stream. The content type is learned from the server if it is not given."""

    def __init__(self, session: Session, name: StreamName, content_type: str | None) -> None:
        self.session = session
        self.name = name
        self.content_type = content_type

    def create(
        self,
        content_type: str,
        ttl_s: int | None,
        expires_at: str | None,
        closed: bool,
        data: Data,
        write_fence: bool = False,
    ) -> Flow[StreamInfo]:
        """Create the stream."""
        headers = write_headers(content_type, closes=closed) | lifetime(ttl_s, expires_at)
        if write_fence:
            headers[WRITE_FENCE] = "true"
        info = yield from operations.create(self.session, self.name.path, headers, as_bytes(data))
        if write_fence and not info.write_fence:
            message = "the stream exists, but this server does not fence writes"
            raise refusal(501, "NO_WRITE_FENCE", message, {})
        self.content_type = content_type
        return info

    def fork(
        self,
        name: str,
        at: str | None,
        sub_offset: int | None,
        content_type: str | None,
        ttl_s: int | None,
        expires_at: str | None,
    ) -> Flow[tuple[StreamFlows, StreamInfo]]:
        """Create another stream that begins with this one's content, and return its flows."""
        fork = StreamFlows(self.session, parse_name(name), content_type)
        headers = write_headers(content_type) | lifetime(ttl_s, expires_at)
        headers[STREAM_FORKED_FROM] = self.name.path
        if at is not None:
            headers[STREAM_FORK_OFFSET] = at
        if sub_offset is not None:
            headers[STREAM_FORK_SUB_OFFSET] = str(sub_offset)
        info = yield from operations.create(self.session, fork.name.path, headers, b"")
        fork.content_type = info.content_type
        return fork, info

    def append(
        self,
        data: Data,
        content_type: str | None,
        if_match: str | None,
        seq: str | None,
        close: bool,
        once: Once | None,
    ) -> Flow[Appended]:
        """Append a body."""
        content_type = content_type or (yield from self.type())
        headers = _append_headers(content_type, if_match, seq, close, once)
        path = self.name.path
        return (yield from operations.append(self.session, path, headers, as_bytes(data)))

    def append_json(
        self,
        values: Iterable[Any],
        if_match: str | None,
        seq: str | None,
        close: bool,
        once: Once | None,
    ) -> Flow[Appended]:
        """Append each value as a message."""
        headers = _append_headers(JSON, if_match, seq, close, once)
        return operations.append(self.session, self.name.path, headers, json_body(list(values)))

    def append_many(
        self,
        parts: Iterable[Data],
        if_match: str | None,
        seq: str | None,
        close: bool,
        once: Once | None,
    ) -> Flow[Appended]:
        """Append each part as a record of its own, all together or none."""
        payloads = [as_bytes(part) for part in parts]
        content_type = yield from self.type()
        headers = _append_headers(content_type, if_match, seq, close, once)
        path = self.name.path
        if is_json(content_type):
            body = json_array(payloads)
        elif len(payloads) == 1:
            [body] = payloads
        else:
            if len(payloads) > MAX_FRAMES:
                raise ValueError(f"at most {MAX_FRAMES} records can be appended together")
            path, body = f"{self.name.bucketed_path()}/append-batch", frames(payloads)
        try:
            return (yield from operations.append(self.session, path, headers, body))
        except Refused as refused:
            if path == self.name.path or not is_unknown_route(refused):
                raise
            message = "this server takes no batches of records: append each by itself"
            raise refusal(refused.status or 0, "NO_BATCHES", message, refused.headers) from refused

    def close(self, if_match: str | None) -> Flow[Appended]:
        """Close the stream."""
        headers = write_headers(if_match=if_match, closes=True)
        return operations.close(self.session, self.name.path, headers)

    def delete(self, if_match: str | None) -> Flow[None]:
        """Delete the stream."""
        headers = write_headers(if_match=if_match)
        return operations.delete(self.session, self.name.path, headers)

    def head(self) -> Flow[StreamInfo]:
        """What the stream is."""
        info = yield from operations.head(self.session, self.name.path)
        self.content_type = info.content_type
        return info

    def read(self, offset: str, max_bytes: int | None) -> Flow[Chunk]:
        """Emit chunks up to the present end."""
        return reading.read(self.session, self.name.path, offset, max_bytes)

    def follow(
        self, offset: str, live: Live, same: reading.Incarnation | None = None
    ) -> Flow[None]:
        """Emit chunks until the stream is closed."""
        return reading.follow(self.session, self.name.path, offset, live, same)

    def read_json(self, offset: str, kind: Any, offsets: bool) -> Flow[None]:
        """Emit messages up to the present end."""
        place = Place(offset)
        form = Form(self.name.written, kind, offsets)
        return messages(self.read(place.offset, None), place, form)

    def follow_json(self, offset: str, live: Live, kind: Any, offsets: bool) -> Flow[None]:
        """Emit messages until the stream is closed."""
        place = Place(offset)
        form = Form(self.name.written, kind, offsets)
        return messages(self.follow(place.offset, live), place, form)

    def type(self) -> Flow[str]:
        """The stream's content type."""
        if self.content_type is None:
            yield from self.head()
        assert self.content_type is not None
        return self.content_type


def _append_headers(
    content_type: str, if_match: str | None, seq: str | None, close: bool, once: Once | None
) -> dict[str, str]:
    headers = write_headers(content_type, if_match=if_match, closes=close)
    if seq is not None:
        headers[STREAM_SEQ] = seq
    if once is not None:
        producer_id, number = _producer_of(once)
        headers |= {PRODUCER_ID: producer_id, PRODUCER_EPOCH: "0", PRODUCER_SEQ: str(number)}
    return headers


def _producer_of(once: Once) -> tuple[str, int]:
    """The producer's id, and the number of this append. Raises `TypeError`, `ValueError`."""
    match once:
        case str():
            return once, 0
        case (str() as producer_id, int() as number):
            if number < 0:
                raise ValueError(f"the appends under an id are counted from 0, not {number}")
            return producer_id, number
    raise TypeError(f"`once` is a key (text), or a pair of an id and a number, not {once!r}")


def as_bytes(data: Data) -> bytes:
    """Text travels as UTF-8. Raises `TypeError`: `bytes` would make NULs of a number."""
    if isinstance(data, str):
        return data.encode()
    if not isinstance(data, _BYTES):
        raise TypeError(f"bytes or text are appended, not {type(data).__name__}")
    return bytes(data)
