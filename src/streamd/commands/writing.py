"""``streamd append``: standard input into a stream."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from typing import Literal

import click

from streamd.client import Appended, Client, Producer
from streamd.commands.lines import (
    MAX_LINE_BYTES,
    PIECE_BYTES,
    Read,
    batches,
    bodies_of_lines,
    pieces,
    reader_of,
)
from streamd.commands.messages import json_object
from streamd.commands.options import json_option, talks_to_server, type_option
from streamd.commands.stopping import Stopped, Stops
from streamd.commands.terminal import Advance, BadInput, descriptor, flush, progress, write
from streamd.streams.content import InvalidJson, is_json, is_text

# The next piece is on its way while one is stored.
_IN_FLIGHT = 2


@click.command()
@click.argument("name")
@click.option(
    "--lines", is_flag=True, help="Append each line by itself; in a JSON stream each is a message."
)
@click.option("--close", is_flag=True, help="Close the stream at the end.")
@click.option(
    "--producer-id", metavar="ID", help="Take over from other processes that append with this ID."
)
@type_option
@json_option
@talks_to_server
def append(
    client: Client,
    name: str,
    lines: bool,
    close: bool,
    producer_id: str | None,
    kind: str | None,
    as_json: bool,
) -> None:
    """Append standard input to the stream NAME.

    Up to 1 MiB is one append; more is several, in order. With --lines, lines are sent as they
    come, many in one append when they come fast. Each append is stored once, however often it
    is sent. --type defaults to the stream's own.

    A signal ends the input: lines that were read are stored first, for up to 5 seconds. What is
    not stored is counted on standard error. The stream is not closed.
    """
    content_type = kind or client.stream(name).head().content_type
    stream = client.stream(name, content_type=content_type)
    # With batches this small each append is a request of its own, which any server takes.
    producer = stream.producer(
        producer_id,
        max_batch_bytes=1,
        max_in_flight=_IN_FLIGHT,
        max_queued_bytes=_IN_FLIGHT * PIECE_BYTES,
    )
    tally = _Tally("lines" if lines else "bytes")
    try:
        with progress(f"append to {name}", _input_bytes()) as advance, Stops() as stops, producer:
            read = tally.counting(reader_of(descriptor(sys.stdin), stops))
            append_all = _append_lines if lines else _append_whole
            last = append_all(producer, content_type, close, read, tally, advance)
    except Stopped as stopped:
        raise Stopped(stopped.number, tally.missing(name)) from None
    if as_json and last is not None:
        _tell(name, last)


class _Tally:
    """How much of the input was read, and how much of that is known to be stored."""

    def __init__(self, unit: Literal["lines", "bytes"]) -> None:
        self._unit = unit
        self._read = 0
        self._has_rest = False
        self.stored = 0

    def counting(self, read: Read) -> Read:
        """A reader that counts what it reads."""

        def read_and_count(timeout_s: float | None) -> bytes | None:
            data = read(timeout_s)
            if data and self._unit == "lines":
                self._read += data.count(b"\n")
                self._has_rest = not data.endswith(b"\n")
            elif data:
                self._read += len(data)
            return data

        return read_and_count

    def missing(self, name: str) -> str:
        """A sentence on what was read and may not be stored; empty if there is nothing."""
        count = self._read - self.stored
        parts = [f"{count} {self._unit} that were read"] if count else []
        if self._has_rest:
            parts.append("the beginning of a line")
        if not parts:
            return ""
        return f"{name}: stopped; not confirmed as stored: {' and '.join(parts)}"


def _append_lines(
    producer: Producer,
    content_type: str,
    close: bool,
    read: Read,
    tally: _Tally,
    advance: Advance,
) -> Appended | None:
    """Append lines as they come; each append ends before more input is awaited."""
    last = None
    taken = 0

    def counted() -> Iterator[list[bytes]]:
        nonlocal taken
        for batch in batches(read):
            taken += len(batch)
            yield batch

    for body in bodies_of_lines(counted(), content_type):
        producer.append(body)
        last = producer.flush()
        tally.stored = taken
        advance(len(body))
    return producer.close_stream() if close else last


def _append_whole(
    producer: Producer,
    content_type: str,
    close: bool,
    read: Read,
    tally: _Tally,
    advance: Advance,
) -> Appended | None:
    """Append the input in pieces; the last one closes the stream with it.

    A piece whose end a signal cut off is not appended: it is not what the user meant to store.
    """
    bodies = _bodies(_patient(read, producer), content_type)
    following: bytes | None = next(bodies, b"")
    if not following:
        if close:
            return producer.close_stream()
        raise BadInput("standard input is empty: nothing to append")
    taken = 0
    try:
        while following is not None:
            body, following = following, next(bodies, None)
            try:
                producer.append(body, close=close and following is None)
            except InvalidJson as error:
                hint = "; for one message a line, use --lines" if b"\n" in body.strip() else ""
                raise BadInput(f"a stream of JSON cannot take the input: {error}{hint}") from None
            taken += len(body)
            advance(len(body))
    except Stopped:
        producer.flush()
        tally.stored = taken
        raise
    return producer.flush()


def _patient(read: Read, producer: Producer) -> Read:
    """Reads so that a wait for input begins only when all appends have ended.

    Otherwise a refusal would show only when more input comes, or never.
    """

    def read_after_appends(timeout_s: float | None) -> bytes | None:
        assert timeout_s is None, "pieces wait for as long as it takes"
        data = read(0.0)
        if data is None:
            producer.flush()
            data = read(None)
        return data

    return read_after_appends


def _bodies(read: Read, content_type: str) -> Iterator[bytes]:
    if not is_json(content_type):
        return pieces(read, PIECE_BYTES, text=is_text(content_type))
    return _one_json_body(pieces(read, MAX_LINE_BYTES, text=False))


def _one_json_body(whole: Iterator[bytes]) -> Iterator[bytes]:
    body = next(whole, b"")
    if next(whole, None) is not None:
        raise BadInput("JSON input exceeds 16 MiB; for one message a line, use --lines")
    yield body


def _input_bytes() -> int | None:
    status = os.fstat(descriptor(sys.stdin))
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _tell(name: str, last: Appended) -> None:
    write(json_object({"name": name, "next_offset": last.next_offset, "closed": last.closed}))
    flush()
