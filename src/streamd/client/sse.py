"""A parser of server-sent events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_EVENT_BYTES = 64 * 1024 * 1024


class Event(NamedTuple):
    """An event with data."""

    kind: str
    data: bytes


class EventTooLarge(Exception):
    """An event exceeds the limit; it may be a body without any events."""


def parse_events(
    chunks: Iterable[bytes], max_event_bytes: int = MAX_EVENT_BYTES
) -> Iterator[Event]:
    """Yield events in order, except one that the end cuts off. Raises `EventTooLarge`."""
    kind = "message"
    data: list[bytes] = []
    size = 0
    for line in _lines(chunks, max_event_bytes):
        if line:
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"event":
                kind = value.decode("utf-8", "replace")
            elif name == b"data":
                size += len(value) + 1
                if size > max_event_bytes:
                    raise EventTooLarge(f"an event exceeds {max_event_bytes} bytes")
                data.append(value)
        else:
            if data:
                yield Event(kind, b"\n".join(data))
            kind, data, size = "message", [], 0


def _lines(chunks: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Split at LF, CRLF or CR."""
    rest: list[bytes] = []
    size = 0
    after_cr = False
    for chunk in chunks:
        if after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            after_cr = False
        if b"\r" in chunk:
            after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *more = chunk.split(b"\n")
        rest.append(first)
        size += len(first)
        if size > max_bytes:
            raise EventTooLarge(f"a line exceeds {max_bytes} bytes")
        if more:
            yield b"".join(rest)
            yield from more[:-1]
            rest, size = [more[-1]], len(more[-1])
