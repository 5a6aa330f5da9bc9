"""``streamd read | tail``: a stream onto standard output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import get_args

import click

from streamd.client import NOW, START, Chunk, Client, Live, OffsetGone, Stream
from streamd.commands.messages import LastLines, json_line, plain
from streamd.commands.options import json_option, talks_to_server
from streamd.commands.terminal import flush, progress, write
from streamd.streams.content import is_json

_DEFAULT_LINES = 10
_MAX_KEPT_BYTES = 64 * 1024 * 1024


@click.command()
@click.argument("name")
@click.option("--from-offset", "offset", default=START, metavar="OFFSET", help="Begin there.")
@json_option
@talks_to_server
def read(client: Client, name: str, offset: str, as_json: bool) -> None:
    """Write the stream NAME, up to its present end, to standard output.

    JSON messages come one a line, everything else byte for byte. With --json, each piece is a
    line with the offset after it.
    """
    with progress(f"read {name}", None, into_stdout=True) as advance:
        for chunk in client.stream(name).read(offset):
            _show(chunk, as_json)
            flush()
            advance(len(chunk.data))


@click.command()
@click.argument("name")
@click.option(
    "-f",
    "--follow",
    "follows",
    is_flag=True,
    help="Follow the stream: show new data until it is closed.",
)
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(min=0),
    help=f"Begin with the last N lines or messages. [default: {_DEFAULT_LINES}]",
)
@click.option("--from-offset", "offset", metavar="OFFSET", help="Begin at this offset.")
@click.option("--from-start", is_flag=True, help="Begin at the start of the stream.")
@click.option("--from-now", is_flag=True, help="Begin at the end of the stream.")
@click.option(
    "--live",
    type=click.Choice(get_args(Live)),
    default="auto",
    show_default=True,
    help="How to follow. auto: long-poll for text (SSE changes line endings), else sse.",
)
@json_option
@talks_to_server
def tail(
    client: Client,
    name: str,
    follows: bool,
    count: int | None,
    offset: str | None,
    from_start: bool,
    from_now: bool,
    live: Live,
    as_json: bool,
) -> None:
    """Show the end of the stream NAME; with -f, go on as it grows.

    -f ends when the stream is closed. It waits for a server that goes away, and shows nothing
    twice and leaves nothing out. To find its last lines a stream is read from the start: for a
    long one, use --from-now or --from-offset.
    """
    starts = {START: from_start, NOW: from_now, offset: offset is not None, None: count is not None}
    if sum(starts.values()) > 1:
        raise click.UsageError("--from-offset, --from-start, --from-now and -n cannot be combined")
    begin = next((start for start, chosen in starts.items() if chosen), None)
    stream = client.stream(name)
    if begin is None:
        lines = _DEFAULT_LINES if count is None else count
        begin = _show_last_lines(stream, lines, as_json)
    elif not follows:
        show_all(stream.read(begin), as_json)
    if follows:
        show_all(stream.follow(begin, live=live), as_json)


def show_all(chunks: Iterable[Chunk], as_json: bool) -> None:
    """Write chunks to standard output as they come."""
    for chunk in chunks:
        _show(chunk, as_json)
        flush()


def _show(chunk: Chunk, as_json: bool) -> None:
    """Write a chunk to standard output, as a line of JSON or byte for byte."""
    if chunk.empty:
        return
    if as_json:
        write(json_line(chunk.content_type, chunk.data, chunk.next_offset))
    else:
        write(plain(chunk.content_type, chunk.data))


def _show_last_lines(stream: Stream, count: int, as_json: bool) -> str:
    """Returns the offset where the stream continues."""
    kept = LastLines(count, _MAX_KEPT_BYTES)
    for chunk in _whole(stream):
        if not chunk.empty:
            kept.add(plain(chunk.content_type, chunk.data))
    lines = kept.lines()
    if not as_json:
        write(lines)
    elif lines:
        data = b"[" + b",".join(lines.splitlines()) + b"]" if is_json(chunk.content_type) else lines
        write(json_line(chunk.content_type, data, chunk.next_offset))
    flush()
    return chunk.next_offset


def _whole(stream: Stream) -> Iterator[Chunk]:
    """All that is retained: what a snapshot replaced is left out."""
    try:
        yield from stream.read(START)
    except OffsetGone as gone:
        if gone.earliest_offset is None:
            raise
        yield from stream.read(gone.earliest_offset)
