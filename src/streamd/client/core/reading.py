"""Reads a stream to its end, and follows it over as many connections as it takes."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from streamd.client.core.operations import is_true
from streamd.client.core.retrying import Backoff, Session, ask, unexpected
from streamd.client.core.sse import MAX_EVENT_BYTES, Events, EventTooLarge
from streamd.client.core.steps import DISCARD, RECEIVE, Answer, Emit, Flow, Lost, Request
from streamd.client.errors import StreamReplaced
from streamd.client.values import NOW, START, Chunk
from streamd.protocol.headers import (
    CONTENT_TYPE,
    ETAG,
    STREAM_CLOSED,
    STREAM_CURSOR,
    STREAM_NEXT_OFFSET,
    STREAM_SSE_DATA_ENCODING,
    STREAM_UP_TO_DATE,
)
from streamd.streams.content import is_json, media_type

Live = Literal["auto", "sse", "long-poll"]

# A live answer without news that comes sooner is broken, by a cache or a proxy: another request
# at once would be the first of a flood.
_SOON_S = 1.0
_OFFSET = r"\d{16}_\d{16}"
_ETAG = re.compile(rf'"(\d+):{_OFFSET}:{_OFFSET}(?::c)?"', re.ASCII)


class Incarnation:
    """Which stream of its name is read: one that was created again, or restored from a backup, may
    have other bytes at the same offsets.

    An ETag begins with the number of the incarnation (docs/buckets-design.md); in other servers'
    answers, and in those of 0.1.0, server-sent events have none. Where offsets go back
    there is another stream, too.
    """

    def __init__(self, session: Session, tag: str | None = None) -> None:
        self._session = session
        self.tag = tag
        self._checked_at = 0.0

    @property
    def is_stale(self) -> bool:
        """Whether no answer has shown the stream's incarnation for a while."""
        is_known = self.tag is not None
        return is_known and self._session.clock() - self._checked_at >= _SOON_S

    def check(self, answer: Answer, before: str, chunk: Chunk) -> None:
        """Take in an answer to a request from an offset on. Raises `StreamReplaced`."""
        _check_order(answer, before, chunk)
        self.check_tag(answer)

    def check_tag(self, answer: Answer) -> None:
        """Take in an answer without an offset. Raises `StreamReplaced`."""
        if (tag := incarnation_tag(answer.headers.get(ETAG))) is None:
            return
        if self.tag not in (None, tag):
            raise replaced(answer.status)
        self.tag, self._checked_at = tag, self._session.clock()


def incarnation_tag(etag: str | None) -> str | None:
    """The number of the incarnation in an ETag; None if it has none."""
    found = _ETAG.fullmatch(etag or "")
    return None if found is None else found[1]


def replaced(status: int | None = None) -> StreamReplaced:
    """The error for a stream that was replaced since reading began."""
    message = "another stream has this name now, or the cluster was restored from a backup"
    return StreamReplaced("STREAM_REPLACED", message, status)


def _check_order(answer: Answer, before: str, chunk: Chunk) -> None:
    if before not in (START, NOW) and chunk.next_offset < before:
        raise replaced(answer.status)


def read(
    session: Session,
    path: str,
    offset: str,
    max_bytes: int | None = None,
    *,
    endless: bool = False,
    same: Incarnation | None = None,
) -> Flow[Chunk]:
    """Emit the stream from `offset` to its present end. Returns the last chunk."""
    same = same or Incarnation(session)
    params = {"offset": offset}
    if max_bytes is not None:
        params["max_bytes"] = str(max_bytes)
    backoff = Backoff(session, endless=endless)
    while True:
        answer = yield from ask(session, Request("GET", path, params), backoff=backoff)
        chunk = _chunk(answer)
        same.check(answer, params["offset"], chunk)
        if chunk.next_offset == params["offset"] and not chunk.up_to_date:
            yield backoff.pause_after(
                session.url, Lost("the answer's next offset does not advance", sent=True)
            )
            continue
        backoff.reset()
        yield Emit(chunk)
        if chunk.up_to_date or chunk.closed:
            return chunk
        params["offset"] = chunk.next_offset


def _chunk(answer: Answer, content_type: str = "") -> Chunk:
    headers = answer.headers
    if STREAM_NEXT_OFFSET not in headers:
        raise unexpected(answer.status, "Stream-Next-Offset is missing")
    closed = is_true(headers, STREAM_CLOSED)
    return Chunk(
        headers.get(CONTENT_TYPE, content_type),
        answer.body,
        headers[STREAM_NEXT_OFFSET],
        closed or is_true(headers, STREAM_UP_TO_DATE),
        closed,
    )


def follow(
    session: Session, path: str, offset: str, live: Live, same: Incarnation | None = None
) -> Flow[None]:
    """Emit the stream from `offset` on, and what is appended, until the stream is closed.

    A connection that breaks is replaced for as long as it takes; reading resumes where the last
    complete chunk ended. `auto` is server-sent events unless the stream is text: events change
    the line ends of text, a long-poll does not (section 5.8).
    """
    same = same or Incarnation(session)
    chunk = yield from read(session, path, offset, endless=True, same=same)
    yield from follow_from(session, path, chunk, live, same)


def follow_from(
    session: Session, path: str, chunk: Chunk, live: Live, same: Incarnation | None = None
) -> Flow[None]:
    """Emit what comes after `chunk`."""
    same = same or Incarnation(session)
    if live == "auto":
        live = "long-poll" if media_type(chunk.content_type).startswith("text/") else "sse"
    ways = {"sse": _follow_by_sse, "long-poll": _follow_by_long_poll}
    yield from ways[live](session, path, chunk, same)


def _is_news(chunk: Chunk, before: Chunk) -> bool:
    """Whether a chunk has data, or otherwise differs from the one before it."""
    return chunk._replace(data=b"") != before._replace(data=b"") or not chunk.empty


def _live_params(live: Live, offset: str, cursor: str | None) -> dict[str, str]:
    params = {"live": live, "offset": offset}
    if cursor is not None:
        params["cursor"] = cursor
    return params


def _follow_by_long_poll(
    session: Session, path: str, chunk: Chunk, same: Incarnation
) -> Flow[None]:
    cursor: str | None = None
    idling = Backoff(session, endless=True)
    while not chunk.closed:
        before, asked_at = chunk, session.clock()
        request = Request("GET", path, _live_params("long-poll", chunk.next_offset, cursor))
        answer = yield from ask(session, request, backoff=Backoff(session, endless=True))
        cursor = answer.headers.get(STREAM_CURSOR, cursor)
        chunk = _chunk(answer, chunk.content_type)
        same.check(answer, before.next_offset, chunk)
        if answer.status == 204:  # it has no Content-Type of the stream
            chunk = chunk._replace(content_type=before.content_type)
        if _is_news(chunk, before):
            idling.reset()
            yield Emit(chunk)
        elif session.clock() - asked_at < _SOON_S:
            yield idling.pause_after(
                session.url, Lost("the server had nothing new to send", sent=True)
            )


def _follow_by_sse(session: Session, path: str, chunk: Chunk, same: Incarnation) -> Flow[None]:
    backoff = Backoff(session, endless=True)
    cursor: str | None = None
    while not chunk.closed:
        heard = has_news = False
        failure: Lost | None = None
        if same.is_stale:
            request = Request("GET", path, {"offset": chunk.next_offset})
            answer = yield from ask(session, request, backoff=backoff)
            before, chunk = chunk, _chunk(answer)
            same.check(answer, before.next_offset, chunk)
            if _is_news(chunk, before):
                yield Emit(chunk)
            if chunk.closed:
                return
        asked_at = session.clock()
        request = Request("GET", path, _live_params("sse", chunk.next_offset, cursor))
        answer = yield from ask(session, request, in_pieces=True, backoff=backoff)
        same.check_tag(answer)
        url = session.url
        try:
            events = _Pieces(answer, chunk.content_type)
            while piece := (yield RECEIVE):
                for received, after in events.feed(piece):
                    before, chunk, cursor, heard = chunk, received, after, True
                    _check_order(answer, before.next_offset, chunk)
                    if _is_news(chunk, before):
                        has_news = True
                        yield Emit(chunk)
                if chunk.closed:
                    break
            yield DISCARD
        except Lost as lost:
            failure = lost
        if has_news or (heard and session.clock() - asked_at >= _SOON_S):
            backoff.reset()  # A server ends each response after a while.
        else:
            failure = failure or Lost(
                "the connection ended before the server sent anything", sent=True
            )
        if failure is not None:
            yield backoff.pause_after(url, failure)


class _Control(msgspec.Struct):
    """A control event, with the protocol's names (section 5.8)."""

    streamNextOffset: str
    streamCursor: str | None = None
    upToDate: bool = False
    streamClosed: bool = False


_CONTROL = msgspec.json.Decoder(_Control)


class _Pieces:
    """Pairs data events with the control event after them; data without one is dropped."""

    def __init__(self, answer: Answer, content_type: str) -> None:
        self._status = answer.status
        self._decode = _from_base64 if _is_coded(answer.headers) else bytes
        self._content_type = content_type
        self._events = Events()
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> Iterator[tuple[Chunk, str | None]]:
        """The complete chunks that end in this piece, and the cursor after each."""
        try:
            for event in self._events.feed(piece):
                if event.kind == "data":
                    self._hold(self._decode(event.data))
                elif event.kind == "control":
                    control = _CONTROL.decode(event.data)
                    yield self._chunk(control), control.streamCursor
                    self._data, self._data_bytes = [], 0
        except (EventTooLarge, ValueError, RecursionError) as error:
            raise unexpected(self._status, str(error)) from error

    def _hold(self, data: bytes) -> None:
        if not data:
            return  # It would take memory without being counted.
        self._data.append(data)
        self._data_bytes += len(data)
        if self._data_bytes > MAX_EVENT_BYTES:
            raise EventTooLarge(f"more than {MAX_EVENT_BYTES} bytes without a control event")

    def _chunk(self, control: _Control) -> Chunk:
        data = self._data
        return Chunk(
            self._content_type,
            data[0] if len(data) == 1 else _joined(data, self._content_type),
            control.streamNextOffset,
            control.upToDate or control.streamClosed,
            control.streamClosed,
        )


def _joined(parts: list[bytes], content_type: str) -> bytes:
    """The data of several events as that of one."""
    if not is_json(content_type) or not parts:
        return b"".join(parts)
    inner = [part.strip()[1:-1] for part in parts]
    return b"[" + b",".join(part for part in inner if part.strip()) + b"]"


def _is_coded(headers: Mapping[str, str]) -> bool:
    return headers.get(STREAM_SSE_DATA_ENCODING, "").lower() == "base64"


def _from_base64(data: bytes) -> bytes:
    return b64decode(data.replace(b"\n", b"").replace(b"\r", b""), validate=True)
