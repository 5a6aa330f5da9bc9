"""``streamd snapshot | bootstrap``: snapshots of streams, and streams from their snapshot on."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import click
import httpx

from streamd.client.appending import metadata
from streamd.client.bootstrapping import Directory, JsonLines, Plain, Sink
from streamd.client.core.multipart import (
    PartData,
    PartEnd,
    PartStart,
    boundary_of,
    parse_parts,
)
from streamd.client.core.steps import Done, Emit, resume
from streamd.client.following import NOW, Live, Piece, follow
from streamd.client.names import StreamName, parse_name
from streamd.client.options import json_option, talks_to_server, type_option
from streamd.client.reading import show
from streamd.client.terminal import (
    Advance,
    BadInput,
    descriptor,
    flush,
    progress,
    say,
    standard_output,
)
from streamd.client.transport import FAILURES, Body, Server, Unreachable
from streamd.headers import CONTENT_TYPE, STREAM_NEXT_OFFSET, STREAM_SNAPSHOT_OFFSET

_CHUNK_BYTES = 256 * 1024


@click.group()
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
def publish(server: Server, name: str, file: str | None, at: str, kind: str | None) -> None:
    """Publish FILE, or standard input, as the snapshot of NAME at an offset.

    The server then trims what the stream holds before the offset. A failed try can be repeated
    only if the input is a file.
    """
    stream = parse_name(name)
    if at == NOW:
        at = str(metadata(server, stream)[STREAM_NEXT_OFFSET])
    path = f"{stream.bucketed_path()}/snapshot/{_quoted(at)}"
    with (
        open(file or descriptor(sys.stdin), "rb", closefd=file is not None) as source,
        progress(f"publish {name}", _size(source)) as advance,
    ):
        headers: dict[str, str] = {CONTENT_TYPE: kind or "application/octet-stream"}
        if (size := _size(source)) is not None:
            headers["Content-Length"] = str(size)
        server.ask("PUT", path, headers=headers, body=_sent_from(source, advance))
    say(f"published a snapshot of {name} at {at}")


def _quoted(offset: str) -> str:
    return quote(offset, safe="")


def _size(source: BinaryIO) -> int | None:
    status = os.fstat(source.fileno())
    return status.st_size - source.tell() if stat.S_ISREG(status.st_mode) else None


def _sent_from(source: BinaryIO, advance: Advance) -> Body:
    """A body that can be sent again if its source can be read again."""
    start = source.tell() if source.seekable() else None
    sent = False

    def body() -> Iterator[bytes]:
        nonlocal sent
        if sent and start is None:
            raise BadInput("standard input cannot be read twice; to allow another try, give a FILE")
        if start is not None:
            source.seek(start)
        sent = True
        return _chunks(source, advance)

    return body


def _chunks(source: BinaryIO, advance: Advance) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK_BYTES):
        yield chunk
        advance(len(chunk))


@snapshot.command("read")
@click.argument("name")
@click.option(
    "--at", metavar="OFFSET", help="Only the snapshot at this offset. [default: the latest]"
)
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@talks_to_server
def read_snapshot(server: Server, name: str, at: str | None, output: Path | None) -> None:
    """Write the latest snapshot of NAME to standard output, or to a file once it is complete."""
    path = parse_name(name).bucketed_path() + "/snapshot"
    if at is not None:
        path += "/" + _quoted(at)
    if output is None:
        _download(server, path, standard_output(), name, into_stdout=True)
        flush()
        return
    partial = output.with_name(f".{output.name}.part")
    try:
        with partial.open("wb") as target:
            _download(server, path, target, name, into_stdout=False)
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _download(server: Server, path: str, target: BinaryIO, name: str, *, into_stdout: bool) -> None:
    backoff = server.backoff()
    written = 0
    while True:
        try:
            with server.attempt("GET", path) as response:
                total = response.headers.get("content-length")
                size = int(total) if total is not None else None
                with progress(f"read {name}", size, into_stdout=into_stdout) as advance:
                    for chunk in response.iter_bytes():
                        written += target.write(chunk)
                        advance(len(chunk))
                return
        except FAILURES as failure:
            if written:
                raise Unreachable(
                    f"{server.shown_url} broke off after {written} bytes"
                ) from failure
            backoff.wait(failure)


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
    server: Server, name: str, directory: Path | None, follows: bool, as_json: bool
) -> None:
    """Write the snapshot of NAME, and then all messages after it, to standard output.

    JSON comes one message a line. With --json, the first line has the offsets, and each message
    is a line with its content type.
    """
    stream = parse_name(name)
    stream.bucketed_path()
    if directory is not None and (follows or as_json):
        raise click.UsageError("--dir excludes --follow and --json")
    sink: Sink = Plain()
    if directory is not None:
        sink = Directory(directory)
    elif as_json:
        sink = JsonLines()
    with progress(f"bootstrap {name}", None, into_stdout=directory is None) as advance:
        at = _receive(server, stream, sink, advance)
    flush()
    if follows:
        _follow(server, stream, at, as_json)


def _receive(server: Server, stream: StreamName, sink: Sink, advance: Advance) -> str:
    """Write everything into `sink`; returns the offset where the stream continues."""
    backoff = server.backoff()
    begun = False
    while True:
        try:
            with server.attempt("GET", stream.bucketed_path() + "/bootstrap") as response:
                begun = True
                return _pass_on(response, sink, advance)
        except FAILURES as failure:
            if begun:
                raise Unreachable(f"{server.shown_url} broke off before the end") from failure
            backoff.wait(failure)


def _pass_on(response: httpx.Response, sink: Sink, advance: Advance) -> str:
    headers = response.headers
    boundary = boundary_of(headers.get(CONTENT_TYPE, ""))
    next_offset: str = headers.get(STREAM_NEXT_OFFSET, "")
    sink.begin(headers.get(STREAM_SNAPSHOT_OFFSET, "-1"), next_offset)
    pieces, parts, piece = response.iter_bytes(), parse_parts(boundary), None
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


def _follow(server: Server, stream: StreamName, at: str, as_json: bool) -> None:
    content_type = metadata(server, stream).get(CONTENT_TYPE, "")
    for piece in follow(server, stream, Piece(content_type, b"", at), Live.AUTO):
        show(piece, as_json)
        flush()
