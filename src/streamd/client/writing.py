"""``streamd append``: standard input into a stream."""

from __future__ import annotations

import os
import stat
import sys
import time
import uuid
from collections.abc import Iterator

import click

from streamd.client.appending import Producer, bodies_of_lines, metadata
from streamd.client.lines import (
    MAX_LINE_BYTES,
    PIECE_BYTES,
    batches,
    pieces,
    reader_of,
)
from streamd.client.messages import json_object
from streamd.client.names import parse_name
from streamd.client.options import json_option, talks_to_server, type_option
from streamd.client.terminal import Advance, BadInput, descriptor, flush, progress, write
from streamd.client.transport import Answer, ApiError, Server
from streamd.headers import CONTENT_TYPE, STREAM_CLOSED, STREAM_NEXT_OFFSET
from streamd.streams.content import is_json, is_text


@click.command()
@click.argument("name")
@click.option("--lines", is_flag=True, help="Append line by line; each is a message in JSON.")
@click.option("--close", is_flag=True, help="Close the stream at the end.")
@click.option("--producer-id", metavar="ID", help="Take over from others that append as ID.")
@type_option
@json_option
@talks_to_server
def append(
    server: Server,
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
    """
    stream = parse_name(name)
    content_type = kind or metadata(server, stream).get(CONTENT_TYPE, "")
    name_of_producer = producer_id or f"streamd-{uuid.uuid4()}"
    producer = Producer(server, stream, content_type, name_of_producer, time.time_ns() // 1_000_000)
    with progress(f"append to {name}", _input_bytes()) as advance:
        if lines:
            last = _append_lines(producer, content_type, close, advance)
        else:
            last = _append_whole(producer, content_type, close, advance)
    if as_json and last is not None:
        _tell(name, last)


def _append_lines(
    producer: Producer, content_type: str, close: bool, advance: Advance
) -> Answer | None:
    last = None
    for body in bodies_of_lines(batches(reader_of(descriptor(sys.stdin))), content_type):
        last = producer.append(body)
        advance(len(body))
    return producer.append(b"", close=True) if close else last


def _append_whole(
    producer: Producer, content_type: str, close: bool, advance: Advance
) -> Answer | None:
    """Append the input in pieces; the last one closes the stream with it."""
    bodies = _bodies(content_type)
    body = next(bodies, b"")
    if not body and not close:
        raise BadInput("standard input is empty: nothing to append")
    while True:
        following = next(bodies, None)
        try:
            last = producer.append(body, close=close and following is None)
        except ApiError as refusal:
            if refusal.code == "INVALID_JSON" and b"\n" in body.strip():
                raise BadInput(f"{refusal}; for one message a line, use --lines") from None
            raise
        advance(len(body))
        if following is None:
            return last
        body = following


def _bodies(content_type: str) -> Iterator[bytes]:
    read = reader_of(descriptor(sys.stdin))
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


def _tell(name: str, answer: Answer) -> None:
    headers = answer.headers
    closed = headers.get(STREAM_CLOSED, "").lower() == "true"
    offset = headers.get(STREAM_NEXT_OFFSET, "")
    write(json_object({"name": name, "next_offset": offset, "closed": closed}))
    flush()
