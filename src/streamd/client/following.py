"""Reads a stream to its end, and then follows it over as many connections as it takes."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import httpx
import msgspec

from streamd.client.core.sse import Events, EventTooLarge
from streamd.client.names import StreamName
from streamd.client.transport import FAILURES, Answer, ApiError, Broken, Server
from streamd.headers import (
    CONTENT_TYPE,
    STREAM_CLOSED,
    STREAM_CURSOR,
    STREAM_NEXT_OFFSET,
    STREAM_SSE_DATA_ENCODING,
    STREAM_UP_TO_DATE,
)
from streamd.streams.content import is_json, media_type

START = "-1"
NOW = "now"


class Live(StrEnum):
    """How to wait for new data."""

    AUTO = "auto"
    SSE = "sse"
    LONG_POLL = "long-poll"


class Piece(NamedTuple):
    """Part of a stream, and the offset where the next part begins."""

    content_type: str
    data: bytes
    next_offset: str
    up_to_date: bool = False
    closed: bool = False

    @property
    def empty(self) -> bool:
        return not self.data or (is_json(self.content_type) and self.data.strip() == b"[]")


def read(server: Server, stream: StreamName, offset: str) -> Iterator[Piece]:
    """The stream from `offset` to its present end. Raises `ApiError`, `Unreachable`."""
    while True:
        piece = _piece(server.ask("GET", stream.path, params={"offset": offset}))
        yield piece
        if piece.up_to_date or piece.closed:
            return
        offset = piece.next_offset


def _piece(answer: Answer, content_type: str = "") -> Piece:
    headers = answer.headers
    if STREAM_NEXT_OFFSET not in headers:
        raise _unexpected(answer.status, "Stream-Next-Offset is missing")
    return Piece(
        headers.get(CONTENT_TYPE, content_type),
        answer.body,
        headers[STREAM_NEXT_OFFSET],
        headers.get(STREAM_UP_TO_DATE, "").lower() == "true",
        headers.get(STREAM_CLOSED, "").lower() == "true",
    )


def follow(server: Server, stream: StreamName, piece: Piece, live: Live) -> Iterator[Piece]:
    """Yield what comes after `piece`, until the stream is closed.

    A lost connection is replaced, for as long as it takes; reading resumes where the last complete
    piece ended. `Live.AUTO` uses server-sent events unless the stream is text: events change the
    line ends of text, a long-poll answers with the bytes as they are (section 5.8). Raises
    `ApiError`, `Unreachable`.
    """
    if live is Live.AUTO:
        text = media_type(piece.content_type).startswith("text/")
        live = Live.LONG_POLL if text else Live.SSE
    ways = {Live.SSE: _follow_by_sse, Live.LONG_POLL: _follow_by_long_poll}
    return ways[live](server, stream, piece)


def _follow_by_long_poll(server: Server, stream: StreamName, piece: Piece) -> Iterator[Piece]:
    content_type = piece.content_type
    cursor: str | None = None
    while not piece.closed:
        params = {"live": "long-poll", "offset": piece.next_offset}
        if cursor is not None:
            params["cursor"] = cursor
        backoff = server.backoff(endless=True)
        answer = server.ask("GET", stream.path, params=params, backoff=backoff)
        cursor = answer.headers.get(STREAM_CURSOR, cursor)
        piece = _piece(answer, content_type)
        yield piece


def _follow_by_sse(server: Server, stream: StreamName, piece: Piece) -> Iterator[Piece]:
    backoff = server.backoff(endless=True)
    cursor: str | None = None
    while not piece.closed:
        params = {"live": "sse", "offset": piece.next_offset}
        if cursor is not None:
            params["cursor"] = cursor
        heard = False
        try:
            with server.attempt("GET", stream.path, params) as response:
                for received in _pieces_of_events(response, piece.content_type):
                    piece, cursor = received
                    heard = True
                    backoff.reset()
                    yield piece
                    if piece.closed:
                        return
            if not heard:
                # A server ends each response after a while, but sends a control event first.
                raise Broken("the connection ended before the first event")
        except FAILURES as failure:
            backoff.wait(failure)


def _pieces_of_events(
    response: httpx.Response, content_type: str
) -> Iterator[tuple[Piece, str | None]]:
    """Pair data with the control event after it; data without one is dropped."""
    encoded = response.headers.get(STREAM_SSE_DATA_ENCODING, "").lower() == "base64"
    data = b""
    events = Events()
    try:
        for event in (event for piece in response.iter_bytes() for event in events.feed(piece)):
            if event.kind == "data":
                data = _decoded(event.data) if encoded else event.data
            elif event.kind == "control":
                control = _CONTROL.decode(event.data)
                up_to_date = control.upToDate or control.streamClosed
                offset = control.streamNextOffset
                piece = Piece(content_type, data, offset, up_to_date, control.streamClosed)
                yield piece, control.streamCursor
                data = b""
    except (EventTooLarge, ValueError) as error:
        raise _unexpected(response.status_code, str(error)) from error


class _Control(msgspec.Struct):
    """A control event, with the protocol's names (section 5.8)."""

    streamNextOffset: str
    streamCursor: str | None = None
    upToDate: bool = False
    streamClosed: bool = False


_CONTROL = msgspec.json.Decoder(_Control)


def _unexpected(status: int, message: str) -> ApiError:
    return ApiError(status, "UNEXPECTED", f"the answer breaks the protocol: {message}", {})


def _decoded(data: bytes) -> bytes:
    return b64decode(data.replace(b"\n", b"").replace(b"\r", b""), validate=True)
