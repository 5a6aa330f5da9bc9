"""Snapshots and bootstrap (extensions sections 2 and 3)."""

from __future__ import annotations

from streamd.http.openapi.elements import Json, Operation, Reply
from streamd.http.openapi.stream_docs import COLD, ELSEWHERE, FOUND, SERVER

_PLACE = (
    "Stream-Snapshot-Offset",
    "Stream-Next-Offset",
    "Stream-Up-To-Date",
    "Stream-Closed?",
    "Cache-Control",
)
_BINARY: Json = {"schema": {"type": "string", "format": "binary"}}
_ANYTHING: Json = {"*/*": {"schema": {}}}
_FOUND = (*FOUND, "404 SNAPSHOT_NOT_FOUND", *SERVER)

LATEST = Operation(
    "findLatestSnapshot",
    "Find the latest snapshot",
    {307: Reply("The address of the latest snapshot.", ("Location", *_PLACE))},
    _FOUND,
)
READ = Operation(
    "readSnapshot",
    "Read a snapshot",
    {200: Reply("The snapshot, with the content type it was published with.", _PLACE, _ANYTHING)},
    ("503 TOO_MANY_DOWNLOADS", *COLD, *_FOUND),
)
PUBLISH = Operation(
    "publishSnapshot",
    "Publish a snapshot, and trim the records that it replaces",
    {
        204: Reply(
            "Published: the stream now begins at the snapshot.",
            ("Stream-Snapshot-Offset", "Stream-Next-Offset"),
        ),
        307: ELSEWHERE,
    },
    (
        "400 INVALID_OFFSET",
        "400 INVALID_CONTENT_TYPE",
        "409 OFFSET_BEYOND_TAIL",
        "409 SNAPSHOT_EXISTS",
        "507 QUOTA_EXCEEDED",
        "507 DISK_LOW",
        "410 STREAM_OFFSET_GONE",
        "413 SNAPSHOT_TOO_LARGE",
        "503 TOO_MANY_UPLOADS",
        "503 UPLOAD_LOST",
        *FOUND,
        *COLD,
        *SERVER,
    ),
    body={
        "description": "The stream's content up to the offset, in any content type; up to "
        "`server.max_snapshot_bytes`, 128 MiB by default. It may be sent in chunks.",
        "content": {"application/octet-stream": _BINARY, "text/plain": _BINARY},
    },
    description="From then on, reads before the snapshot's offset are answered 410. Appends go on "
    "meanwhile. The limit is `server.max_snapshot_bytes`, not `server.max_body_bytes`.",
)
DELETE = Operation(
    "deleteSnapshot",
    "Always refused: the stream needs its only snapshot",
    {307: ELSEWHERE},
    ("409 SNAPSHOT_IN_USE", *_FOUND),
)
BOOTSTRAP = Operation(
    "bootstrap",
    "The snapshot and every message after it, in one response",
    {
        200: Reply(
            "Parts: first the snapshot (empty if there is none), then a part for each message. "
            "The client reads on from `Stream-Next-Offset`.",
            _PLACE,
            {"multipart/mixed": {"schema": {"type": "string"}}},
        )
    },
    ("400 INVALID_REQUEST", "503 TOO_MANY_DOWNLOADS", *FOUND, *COLD, *SERVER),
    description="It takes no query parameters but that of a signed URL.",
)
