"""``streamd snapshot | bootstrap``: snapshots of streams, and streams from their snapshot on."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from streamd.client import NOW, Answer, Client
from streamd.client.core.multipart import PartData, PartEnd, PartStart, boundary_of, parse_parts
from streamd.client.core.snapshots import snapshot_path
from streamd.client.core.steps import Done, Emit, resume
from streamd.client.names import StreamName, parse_name
from streamd.commands.bootstrapping import Directory, JsonLines, Plain, Sink
from streamd.commands.options import json_option, server_options, talks_to_server, type_option
from streamd.commands.reading import show_all
from streamd.commands.terminal import (
    Advance,
    BadInput,
    descriptor,
    flush,
    progress,
    say,
    standard_output,
)
from streamd.protocol.headers import CONTENT_TYPE, STREAM_NEXT_OFFSET, STREAM_SNAPSHOT_OFFSET

_CHUNK_BYTES = 256 * 1024


@click.group()
@server_options
def snapshot() -> None:
    """Publish and read snapshots: each replaces what its stream held before it."""


@snapshot.command()
@click.argument("name")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--at",
    required=True,
    metavar="OFFSET",
    help="The first offset it does not cover; 'now' for the end of the stream.",
)
@type_option
@talks_to_server
def publish(client: Client, name: str, file: str | None, at: str, kind: str | None) -> None:
    """Publish FILE, or standard input, as the snapshot of NAME at an offset.

    The server then trims what the stream holds before the offset. A failed try can be repeated
    only if the input is a file.
    """
    stream = client.stream(name)
    if at == NOW:
        at = stream.head().next_offset
    with (
        open(file or descriptor(sys.stdin), "rb", closefd=file is not None) as source,
        progress(f"publish {name}", _size(source)) as advance,
    ):
        stream.snapshot.publish(
            at,
            _sent_from(source, advance),
            content_type=kind or "application/octet-stream",
            size_bytes=_size(source),
        )
    say(f"published a snapshot of {name} at {at}")


def _size(source: BinaryIO) -> int | None:
    status = os.fstat(source.fileno())
    return status.st_size - source.tell() if stat.S_ISREG(status.st_mode) else None


def _sent_from(source: BinaryIO, advance: Advance) -> Callable[[], Iterator[bytes]]:
    """A body that can be sent again if its source can be read again."""
    start = source.tell() if source.seekable() else None
    sent = False

    def body() -> Iterator[bytes]:
        nonlocal sent
        if sent and start is None:
            raise BadInput("standard input cannot be read twice; to allow another try, give a FILE")
        if start is not None:
            source.seek(start)
        sent = True  # Not before: a try that found no server has read nothing.
        yield from _chunks(source, advance)

    return body


def _chunks(source: BinaryIO, advance: Advance) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK_BYTES):
        yield chunk
        advance(len(chunk))


@snapshot.command("read")
@click.argument("name")
@click.option(
    "--at", metavar="OFFSET", help="Write the snapshot at this offset. [default: the latest]"
)
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@talks_to_server
def read_snapshot(client: Client, name: str, at: str | None, output: Path | None) -> None:
    """Write the latest snapshot of NAME to standard output, or to a file once it is complete."""
    path = snapshot_path(parse_name(name), at)
    if output is None:
        _download(client, path, standard_output(), name, into_stdout=True)
        flush()
        return
    partial = output.with_name(f".{output.name}.part")
    try:
        with partial.open("wb") as target:
            _download(client, path, target, name, into_stdout=False)
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _download(client: Client, path: str, target: BinaryIO, name: str, *, into_stdout: bool) -> None:
    answer, pieces = _received(client, path)
    size = answer.headers.get("Content-Length")
    total = int(size) if size is not None else None
    with progress(f"read {name}", total, into_stdout=into_stdout) as advance:
        for piece in pieces:
            target.write(piece)
            advance(len(piece))


def _received(client: Client, path: str) -> tuple[Answer, Iterator[bytes]]:
    """An answer and the pieces of its body."""
    parts = client.download(path)
    answer = next(parts)
    assert isinstance(answer, Answer), "it comes first"
    return answer, (part for part in parts if isinstance(part, bytes))


@click.command()
@click.argument("name")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write each message to its own file in a new directory.",
)
@click.option("-f", "--follow", "follows", is_flag=True, help="Continue with what is appended.")
@json_option
@talks_to_server
def bootstrap(
    client: Client, name: str, directory: Path | None, follows: bool, as_json: bool
) -> None:
    """Write the snapshot of NAME, and then all messages after it, to standard output.

    JSON comes one message a line. With --json, the first line has the offsets, and each message
    is a line with its content type.
    """
    stream = parse_name(name)
    stream.bucketed_path()
    if directory is not None and (follows or as_json):
        raise click.UsageError("--dir cannot be combined with --follow or --json")
    sink: Sink = Plain()
    if directory is not None:
        sink = Directory(directory)
    elif as_json:
        sink = JsonLines()
    with progress(f"bootstrap {name}", None, into_stdout=directory is None) as advance:
        at = _receive(client, stream, sink, advance)
    flush()
    if follows:
        show_all(client.stream(name).follow(at), as_json)


def _receive(client: Client, stream: StreamName, sink: Sink, advance: Advance) -> str:
    """Write everything into `sink`; returns the offset where the stream continues."""
    answer, pieces = _received(client, f"{stream.bucketed_path()}/bootstrap")
    headers = answer.headers
    boundary = boundary_of(headers.get(CONTENT_TYPE, ""))
    next_offset = headers.get(STREAM_NEXT_OFFSET, "")
    sink.begin(headers.get(STREAM_SNAPSHOT_OFFSET, "-1"), next_offset)
    parts, piece = parse_parts(boundary), None
    while not isinstance(step := resume(parts, piece, None), Done):
        if not isinstance(step, Emit):
            piece = next(pieces, b"")
            continue
        piece = None
        match step.value:
            case PartStart(content_type):
                sink.start(content_type)
            case PartData(data):
                sink.data(data)
                advance(len(data))
            case PartEnd():
                sink.end()
    sink.finish()
    return next_offset
