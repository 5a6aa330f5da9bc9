"""Server-sent events as bytes (protocol section 5.8)."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence

from streamd.http.messages import Buffer
from streamd.streams.content import is_json, is_text
from streamd.streams.offsets import Position

HEARTBEAT = b":\n\n"

_NEXT_LINE = re.compile(rb"(?:\r\n|\n|\r)( ?)")


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
        payload = _NEXT_LINE.sub(rb"\ndata:\1\1", payload)
    if payload.startswith(b" "):
        payload = b" " + payload
    return b"event: data\ndata:" + payload + b"\n\n"


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
