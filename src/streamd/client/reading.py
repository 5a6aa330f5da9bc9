"""``streamd read | tail``: a stream onto standard output."""

from __future__ import annotations

from collections.abc import Iterator

import click

from streamd.client.following import NOW, START, Live, Piece, follow
from streamd.client.following import read as read_pieces
from streamd.client.messages import LastLines, json_line, plain
from streamd.client.names import StreamName, parse_name
from streamd.client.options import json_option, talks_to_server
from streamd.client.terminal import flush, progress, write
from streamd.client.transport import ApiError, Server
from streamd.headers import STREAM_EARLIEST_OFFSET
from streamd.streams.content import is_json

_DEFAULT_LINES = 10
_MAX_KEPT_BYTES = 64 * 1024 * 1024


@click.command()
@click.argument("name")
@click.option("--from-offset", "offset", default=START, metavar="OFFSET", help="Begin there.")
@json_option
@talks_to_server
def read(server: Server, name: str, offset: str, as_json: bool) -> None:
    """Write the stream NAME, up to its present end, to standard output.

    JSON messages come one a line, everything else byte for byte. With --json, each piece is a
    line with the offset after it.
    """
    with progress(f"read {name}", None, into_stdout=True) as advance:
        for piece in read_pieces(server, parse_name(name), offset):
            show(piece, as_json)
            advance(len(piece.data))
    flush()


@click.command()
@click.argument("name")
@click.option("-f", "--follow", "follows", is_flag=True, help="Stay, and show what is appended.")
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(min=0),
    help=f"Begin with the last N lines or messages. [default: {_DEFAULT_LINES}]",
)
@click.option("--from-offset", "offset", metavar="OFFSET", help="Begin there instead.")
@click.option("--from-start", is_flag=True, help="Begin at the start of the stream.")
@click.option("--from-now", is_flag=True, help="Begin at the present end.")
@click.option(
    "--live",
    type=click.Choice([live.value for live in Live]),
    default=Live.AUTO.value,
    show_default=True,
    help="How to wait: auto is long-poll for text, whose line ends sse changes, else sse.",
)
@json_option
@talks_to_server
def tail(
    server: Server,
    name: str,
    follows: bool,
    count: int | None,
    offset: str | None,
    from_start: bool,
    from_now: bool,
    live: str,
    as_json: bool,
) -> None:
    """Show the end of the stream NAME; with -f, go on as it grows.

    -f ends when the stream is closed. It waits for a server that goes away, and shows nothing
    twice and leaves nothing out. To find its last lines a stream is read from the start: for a
    long one, use --from-now or --from-offset.
    """
    starts = {START: from_start, NOW: from_now, offset: offset is not None, None: count is not None}
    if sum(starts.values()) > 1:
        raise click.UsageError("--from-offset, --from-start, --from-now and -n exclude each other")
    begin = next((start for start, chosen in starts.items() if chosen), None)
    stream = parse_name(name)
    if begin is None:
        lines = _DEFAULT_LINES if count is None else count
        last = _show_last_lines(server, stream, lines, as_json)
    else:
        for piece in read_pieces(server, stream, begin):
            last = _shown(piece, as_json)
    if follows:
        for piece in follow(server, stream, last, Live(live)):
            _shown(piece, as_json)


def _shown(piece: Piece, as_json: bool) -> Piece:
    show(piece, as_json)
    flush()
    return piece


def show(piece: Piece, as_json: bool) -> None:
    """Write a piece to standard output, as a line of JSON or as it is."""
    if piece.empty:
        return
    if as_json:
        write(json_line(piece.content_type, piece.data, piece.next_offset))
    else:
        write(plain(piece.content_type, piece.data))


def _show_last_lines(server: Server, stream: StreamName, count: int, as_json: bool) -> Piece:
    kept = LastLines(count, _MAX_KEPT_BYTES)
    for piece in _whole(server, stream):
        if not piece.empty:
            kept.add(plain(piece.content_type, piece.data))
    lines = kept.lines()
    if not as_json:
        write(lines)
    elif lines:
        data = b"[" + b",".join(lines.splitlines()) + b"]" if is_json(piece.content_type) else lines
        write(json_line(piece.content_type, data, piece.next_offset))
    flush()
    return piece


def _whole(server: Server, stream: StreamName) -> Iterator[Piece]:
    """All that is retained: what a snapshot replaced is left out."""
    try:
        yield from read_pieces(server, stream, START)
    except ApiError as refusal:
        earliest = refusal.headers.get(STREAM_EARLIEST_OFFSET)
        if refusal.status != 410 or earliest is None:
            raise
        yield from read_pieces(server, stream, earliest)
