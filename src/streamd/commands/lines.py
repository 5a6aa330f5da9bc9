"""Cuts input into bodies of appends: pieces of bytes, or batches of lines."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator

from streamd.commands.stopping import Stopped, Stops
from streamd.streams.content import InvalidJson, is_json, json_value

PIECE_BYTES = 1024 * 1024
BATCH_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024
# A line is one message of a JSON stream, so it cannot be cut.
MAX_LINE_BYTES = 16 * 1024 * 1024
# How long the first line of a batch waits for others.
LINGER_S = 0.05

# Returns the next bytes within a time in seconds: empty at the end, None when the time is over.
Read = Callable[[float | None], bytes | None]


class LineTooLong(Exception):
    """A line is longer than one append may be."""


class NotJson(Exception):
    """A line for a JSON stream is not a JSON value."""


def reader_of(descriptor: int, stops: Stops) -> Read:
    """Read a file, a pipe or a terminal as its bytes arrive.

    The reader raises `Stopped` once a signal has stopped the process.
    """

    def read(timeout_s: float | None) -> bytes | None:
        ready, _, _ = select.select([descriptor, stops.fileno()], [], [], timeout_s)
        stops.check()
        return os.read(descriptor, _READ_BYTES) if ready else None

    return read


def pieces(read: Read, max_bytes: int, *, text: bool) -> Iterator[bytes]:
    """The input in pieces as large as allowed; a piece of text ends with a whole character."""
    held = bytearray()
    while data := read(None):
        held += data
        while len(held) > max_bytes:
            end = _character_start(held, max_bytes) if text else max_bytes
            assert 0 < end <= max_bytes, "each piece is some of the input, and fits in an append"
            yield bytes(held[:end])
            del held[:end]
    if held:
        yield bytes(held)


def _character_start(data: bytearray, end: int) -> int:
    """The last position up to `end` where a UTF-8 character begins; `end` if it is not UTF-8."""
    for at in range(end, max(end - 4, 0), -1):
        if data[at] & 0xC0 != 0x80:
            return at
    return end


def batches(
    read: Read, max_bytes: int = BATCH_BYTES, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[list[bytes]]:
    """Complete lines with their ends, in batches: no line waits longer than `LINGER_S` for others.

    The last line needs no end. Raises `LineTooLong`, and `Stopped` of `read` once all
    complete lines have been taken.
    """
    batch: list[bytes] = []
    size = 0
    due = 0.0
    rest = bytearray()
    while True:
        left_s = due - clock() if batch else None
        try:
            data = read(left_s) if left_s is None or left_s > 0 else None
        except Stopped:
            if batch:
                yield batch
            raise
        if data is None:
            yield batch
            batch, size = [], 0
            continue
        if not batch:
            due = clock() + LINGER_S
        rest += data
        lines = _take_lines(rest, at_end=not data)
        for line in lines:
            if batch and size + len(line) > max_bytes:
                yield batch
                batch, size = [], 0
            batch.append(line)
            size += len(line)
        if not data:
            break
    if batch:
        yield batch


def _take_lines(rest: bytearray, *, at_end: bool) -> list[bytes]:
    end = len(rest) if at_end else rest.rfind(b"\n") + 1
    if end == 0:
        if len(rest) > MAX_LINE_BYTES:
            raise LineTooLong(f"a line is longer than {MAX_LINE_BYTES} bytes")
        return []
    lines = bytes(rest[:end]).splitlines(keepends=True)
    del rest[:end]
    return lines


def bodies_of_lines(batches: Iterator[list[bytes]], content_type: str) -> Iterator[bytes]:
    """Turn batches of lines into bodies: in a JSON stream each line is a message, elsewhere the
    lines are sent unchanged. Raises `NotJson`.
    """
    if not is_json(content_type):
        for batch in batches:
            yield b"".join(batch)
        return
    number = 0
    for batch in batches:
        messages = []
        for line in batch:
            number += 1
            if message := line.strip():
                messages.append(_checked(message, number))
        if messages:
            yield b"[" + b",".join(messages) + b"]"


def _checked(message: bytes, number: int) -> bytes:
    """Check that a line is one JSON value, which cannot break out of the array around it."""
    try:
        json_value(message)
    except InvalidJson as error:
        raise NotJson(f"line {number} is not JSON: {error}") from None
    return message
