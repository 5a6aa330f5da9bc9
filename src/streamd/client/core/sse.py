"""A parser of server-sent events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import NamedTuple

MAX_EVENT_BYTES = 64 * 1024 * 1024


class Event(NamedTuple):
    """An event with data."""

    kind: str
    data: bytes


class EventTooLarge(Exception):
    """An event exceeds the limit; it may be a body without any events."""


class Events:
    """Turns the bytes of a connection into events. One that the end cuts off never comes."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._after_cr = False
        self._begun = False
        self._begin()

    def _begin(self) -> None:
        self._kind = "message"
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that end in the next bytes. Raises `EventTooLarge`."""
        for line in self._lines(piece):
            if not self._begun:
                line, self._begun = line.removeprefix(BOM_UTF8), True
            if line:
                self._take(line)
            else:
                data, kind = self._data, self._kind
                self._begin()
                if data:
                    yield Event(kind, b"\n".join(data))

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._kind = value.decode("utf-8", "replace")
        elif name == b"data":
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._max_bytes:
                raise EventTooLarge(f"an event exceeds {self._max_bytes} bytes")
            self._data.append(value)

    def _lines(self, piece: bytes) -> list[bytes]:
        """The lines that end in the next bytes, at LF, CRLF or CR."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *more = piece.split(b"\n")
        self._rest.append(first)
        self._rest_bytes += len(first)
        if self._rest_bytes > self._max_bytes:
            raise EventTooLarge(f"a line exceeds {self._max_bytes} bytes")
        if not more:
            return []
        lines = [b"".join(self._rest), *more[:-1]]
        self._rest, self._rest_bytes = [more[-1]], len(more[-1])
        return lines
