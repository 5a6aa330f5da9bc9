"""Snapshots of streams, as flows (docs/snapshots-and-bootstrap.md)."""

from __future__ import annotations

from streamd.client.core.retrying import Session, ask, unexpected
from streamd.client.core.steps import Flow, Request
from streamd.client.names import StreamName
from streamd.client.values import Snapshot
from streamd.headers import CONTENT_TYPE, STREAM_SNAPSHOT_OFFSET


def publish(
    session: Session, name: StreamName, offset: str, data: bytes, content_type: str
) -> Flow[None]:
    """Publish a snapshot; a repetition with the same bytes is confirmed."""
    path = f"{name.bucketed_path()}/snapshot/{offset}"
    yield from ask(session, Request("PUT", path, None, {CONTENT_TYPE: content_type}, data))


def read(session: Session, name: StreamName) -> Flow[Snapshot]:
    """The latest snapshot."""
    answer = yield from ask(session, Request("GET", f"{name.bucketed_path()}/snapshot"))
    if STREAM_SNAPSHOT_OFFSET not in answer.headers:
        raise unexpected(answer.status, "Stream-Snapshot-Offset is missing")
    return Snapshot(
        answer.headers[STREAM_SNAPSHOT_OFFSET],
        answer.headers.get(CONTENT_TYPE, ""),
        answer.body,
    )
