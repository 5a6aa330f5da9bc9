"""Server-sent events as bytes (protocol section 5.8)."""

from __future__ import annotations

from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from itertools import chain

from streamd.http.messages import Buffer
from streamd.streams.content import is_json, is_text
from streamd.streams.offsets import Position

HEARTBEAT = b":\n\n"

_PIECE_BYTES = 48 * 1024


def data_event(content_type: str, parts: Sequence[Buffer]) -> bytes:
    """Records as one data event.

    Clients strip one space behind ``data:``, so only a line that begins with a space gets one.
    """
    payload = b"".join(parts)
    if is_json(content_type):
        payload = b"[" + payload[:-1] + b"]"
    elif not is_text(content_type):
        return b"event: data\ndata:" + b64encode(payload) + b"\n\n"
    if not payload.isascii():
        # A reader of text must be able to decode each event; bytes that are not text, or a
        # character cut in two by an append, must not break the whole connection.
        payload = payload.decode("utf-8", "replace").encode()
    if b"\n" in payload or b"\r" in payload:
        payload = _with_fields(payload)
    if payload.startswith(b" "):
        payload = b" " + payload
    return b"event: data\ndata:" + payload + b"\n\n"


def data_event_pieces(content_type: str, parts: Sequence[Buffer]) -> Iterator[bytes]:
    """What `data_event` returns, in pieces of about 64 KiB, none of them empty: a reader that
    waits for its socket holds one of them, not records of any size several times over."""
    if is_json(content_type):
        payload = _lines(chain((b"[",), _pieces(parts, leave=1), (b"]",)))
    elif is_text(content_type):
        payload = _lines(_pieces(parts))
    else:
        payload = _base64(_pieces(parts))
    return filter(None, chain((b"event: data\ndata:",), payload, (b"\n\n",)))


def _pieces(parts: Sequence[Buffer], leave: int = 0) -> Iterator[bytes]:
    """The bytes of `parts` but the last `leave`, a piece at a time."""
    left = sum(map(len, parts)) - leave
    for part in parts:
        for start in range(0, min(len(part), left), _PIECE_BYTES):
            yield bytes(part[start : min(start + _PIECE_BYTES, left)])
        left -= len(part)


def _base64(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        data = rest + piece
        whole = len(data) - len(data) % 3
        rest = data[whole:]
        yield b64encode(data[:whole])
    yield b64encode(rest)


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Text as lines of data. What a line break or a character may go on with waits for it."""
    decoder = getincrementaldecoder("utf-8")("replace")
    rest = b" " if (first := next(pieces, b"")).startswith(b" ") else b""
    for piece in chain((first,), pieces):
        data = rest + decoder.decode(piece).encode()
        whole = len(data) - (2 if data.endswith(b"\r\n") else data.endswith((b"\r", b"\n")))
        rest = data[whole:]
        yield _with_fields(data[:whole])
    yield _with_fields(rest + decoder.decode(b"", final=True).encode())


def _with_fields(text: bytes) -> bytes:
    """Text with a ``data:`` before each of its lines but the first.

    By a pattern it would take the loop twenty times as long, which large records make felt.
    """
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text.replace(b"\n", b"\ndata:").replace(b"\ndata: ", b"\ndata:  ")


def control_event(at: Position, cursor: int, *, up_to_date: bool, closed: bool) -> bytes:
    """The control event that follows each data event; `closed` makes it the last."""
    if closed:
        return b'event: control\ndata:{"streamNextOffset":"%b","streamClosed":true}\n\n' % (
            at.token()
        )
    return b'event: control\ndata:{"streamNextOffset":"%b","streamCursor":"%d"%b}\n\n' % (
        at.token(),
        cursor,
        b',"upToDate":true' if up_to_date else b"",
    )
