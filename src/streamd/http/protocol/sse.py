"""Server-sent events as bytes (protocol section 5.8)."""

from __future__ import annotations

from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from itertools import chain

from streamd.http.protocol.connections import Buffer
from streamd.streams.content import is_json, is_text
from streamd.streams.offsets import Position

HEARTBEAT = b":\n\n"

# A UTF-8 character has at most four bytes, so a cut one has at most three.
MOST_HELD_BYTES = 3

_PIECE_BYTES = 48 * 1024


def data_event(content_type: str, parts: Sequence[Buffer]) -> bytes:
    """Records as one data event.

    Clients strip one space after ``data:``, so only a line that begins with a space gets one.
    """
    payload = b"".join(parts)
    if is_json(content_type):
        payload = b"[" + payload[:-1] + b"]"
    elif not is_text(content_type):
        return b"event: data\ndata:" + b64encode(payload) + b"\n\n"
    if not payload.isascii():
        # Clients decode each event as UTF-8: bytes that are not must not break the connection.
        payload = payload.decode("utf-8", "replace").encode()
    if b"\n" in payload or b"\r" in payload:
        payload = _with_fields(payload)
    if payload.startswith(b" "):
        payload = b" " + payload
    return b"event: data\ndata:" + payload + b"\n\n"


def whole_characters(
    content_type: str, held: bytes, parts: Sequence[Buffer], *, last: bool
) -> tuple[Sequence[Buffer], bytes]:
    """The bytes of `parts` for a data event, and the bytes held back for the next event.

    Appends may cut a character of text, but clients decode each event by itself. So a character
    belongs to the event in which it ends, and the bytes that begin one are `held` back. The `last`
    event of a stream holds nothing back. JSON has no such cuts, and base64 preserves them.
    """
    if is_json(content_type) or not is_text(content_type):
        return parts, b""
    if held:
        parts = [held, *parts]
    cut = b"" if last or not parts else cut_character(_last_bytes(parts))
    return (_without_last(parts, len(cut)) if cut else parts), cut


def cut_character(text: bytes) -> bytes:
    """The bytes at the end of `text` that begin a UTF-8 character without its end."""
    if text[-1:].isascii():
        return b""
    decoder = getincrementaldecoder("utf-8")("replace")
    decoder.decode(text[-MOST_HELD_BYTES:])
    return decoder.getstate()[0]


def _last_bytes(parts: Sequence[Buffer]) -> bytes:
    found = b""
    for part in reversed(parts):
        found = bytes(part[-MOST_HELD_BYTES:]) + found
        if len(found) >= MOST_HELD_BYTES:
            break
    return found[-MOST_HELD_BYTES:]


def _without_last(parts: Sequence[Buffer], size: int) -> list[Buffer]:
    left = list(parts)
    while size:
        part = left.pop()
        if len(part) > size:
            left.append(part[: len(part) - size])
        size -= min(size, len(part))
    return left


def data_event_pieces(content_type: str, parts: Sequence[Buffer]) -> Iterator[bytes]:
    """What `data_event` returns, in non-empty pieces of about 64 KiB: a reader that waits for its
    socket then holds one piece, and not several copies of a large record."""
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
    """Text as lines of data. An incomplete line break or character waits for its rest."""
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

    A regular expression takes twenty times as long, which matters for large records.
    """
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text.replace(b"\n", b"\ndata:").replace(b"\ndata: ", b"\ndata:  ")


def control_event(at: Position, cursor: int, *, up_to_date: bool, closed: bool) -> bytes:
    """The control event that follows each data event; `closed` makes it the last."""
    if closed:
        # Section 5.8 requires both, although the second implies the first.
        flags = b'"upToDate":true,"streamClosed":true'
        return b'event: control\ndata:{"streamNextOffset":"%b",%b}\n\n' % (at.token(), flags)
    return b'event: control\ndata:{"streamNextOffset":"%b","streamCursor":"%d"%b}\n\n' % (
        at.token(),
        cursor,
        b',"upToDate":true' if up_to_date else b"",
    )
