"""Snapshots and bootstraps, as flows."""

from __future__ import annotations

from urllib.parse import quote

from streamd.client.core.multipart import Malformed, PartData, PartStart, boundary_of, parse_parts
from streamd.client.core.operations import write_headers
from streamd.client.core.reading import Live, follow
from streamd.client.core.retrying import Backoff, ask, unexpected
from streamd.client.core.steps import RECEIVE, Answer, Body, Done, Emit, Flow, Lost, Request, resume
from streamd.client.core.streams import StreamFlows
from streamd.client.errors import (
    OffsetGone,
    Refused,
    SnapshotNotFound,
    StreamReplaced,
    is_unknown_route,
)
from streamd.client.names import BadName, StreamName
from streamd.client.values import START, Bootstrap, Snapshot
from streamd.protocol.headers import CONTENT_TYPE, STREAM_NEXT_OFFSET, STREAM_SNAPSHOT_OFFSET

# More than a server accepts unless its operator raises server.max_snapshot_bytes.
MAX_SNAPSHOT_BYTES = 1 << 30
_NO_SNAPSHOT = Snapshot(START, "", b"")


def snapshot_path(name: StreamName, at: str | None) -> str:
    """Where a stream's latest snapshot is, or the one at an offset. Raises `BadName`."""
    path = f"{name.bucketed_path()}/snapshot"
    return path if at is None else f"{path}/{quote(at, safe='')}"


def publish(
    stream: StreamFlows, offset: str, body: Body, content_type: str, size_bytes: int | None
) -> Flow[None]:
    """Publish a snapshot; a repetition with the same bytes is confirmed."""
    headers = write_headers(content_type)
    if size_bytes is not None:
        headers["Content-Length"] = str(size_bytes)
    yield from ask(
        stream.session, Request("PUT", snapshot_path(stream.name, offset), None, headers, body)
    )


def read(stream: StreamFlows, at: str | None) -> Flow[Snapshot]:
    """The latest snapshot, or the one at an offset; read again if it breaks off."""
    request = Request("GET", snapshot_path(stream.name, at))
    backoff = Backoff(stream.session)
    while True:
        try:
            answer = yield from ask(stream.session, request, in_pieces=True, backoff=backoff)
        except SnapshotNotFound as failure:
            # A later one may have replaced that which the server redirected to.
            if at is not None or (yield from stream.head()).snapshot_offset is None:
                raise
            yield backoff.pause_after(stream.session.url, failure)
            continue
        url, parts, size = stream.session.url, [], 0
        try:
            while piece := (yield RECEIVE):
                parts.append(piece)
                size += len(piece)
                if size > MAX_SNAPSHOT_BYTES:
                    raise unexpected(answer.status, f"more than {MAX_SNAPSHOT_BYTES} bytes")
        except Lost as lost:
            yield backoff.pause_after(url, lost)
            continue
        headers = answer.headers
        offset = headers.get(STREAM_SNAPSHOT_OFFSET, at or "")
        return Snapshot(offset, headers.get(CONTENT_TYPE, ""), b"".join(parts))


def bootstrap(stream: StreamFlows) -> Flow[Bootstrap]:
    """The snapshot and all messages after it, in one answer."""
    request = Request("GET", f"{stream.name.bucketed_path()}/bootstrap")
    answer = yield from ask(stream.session, request)
    try:
        (kind, data), *messages = _parts(answer)
    except (Malformed, ValueError) as error:
        raise unexpected(answer.status, str(error)) from error
    offset = answer.headers.get(STREAM_SNAPSHOT_OFFSET, START)
    snapshot = _NO_SNAPSHOT if offset == START else Snapshot(offset, kind, data)
    content_type = messages[0][0] if messages else (yield from stream.type())
    bodies = [body for _, body in messages]
    return Bootstrap(snapshot, content_type, bodies, answer.headers.get(STREAM_NEXT_OFFSET, ""))


def _parts(answer: Answer) -> list[tuple[str, bytes]]:
    """Type and body of each part of an answer."""
    parts: list[tuple[str, bytes]] = []
    kind, body = "", b""
    flow = parse_parts(boundary_of(answer.headers.get(CONTENT_TYPE, "")))
    rest: bytes | None = answer.body
    result: bytes | None = None
    while not isinstance(step := resume(flow, result, None), Done):
        result = None
        if not isinstance(step, Emit):
            result, rest = rest, b""
        elif isinstance(step.value, PartStart):
            kind, body = step.value.content_type, b""
        elif isinstance(step.value, PartData):
            body += step.value.data
        else:
            parts.append((kind, body))
    return parts


def state(stream: StreamFlows, live: Live) -> Flow[None]:
    """Emit the latest snapshot, and then the stream from there on as it grows.

    A reader that is overtaken by a later snapshot gets that one, and continues from there.
    """
    while True:
        snapshot = yield from _latest(stream)
        yield Emit(snapshot)
        try:
            return (yield from follow(stream.session, stream.name.path, snapshot.offset, live))
        except (OffsetGone, StreamReplaced):
            continue


def _latest(stream: StreamFlows) -> Flow[Snapshot]:
    try:
        return (yield from read(stream, None))
    except (SnapshotNotFound, BadName):
        return _NO_SNAPSHOT  # also of streams that are not in a bucket of their own
    except Refused as refused:
        if not is_unknown_route(refused):
            raise
        return _NO_SNAPSHOT  # Other servers of the protocol have none.
