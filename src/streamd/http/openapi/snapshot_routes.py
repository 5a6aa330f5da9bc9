"""Snapshots and bootstrap (extensions sections 2 and 3)."""

from __future__ import annotations

from streamd.http.openapi.elements import Json, Operation, Path, Reply
from streamd.http.openapi.stream_routes import COLD, ELSEWHERE, FOUND, IN_BUCKET, SERVER

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

_LATEST = Operation(
    "findLatestSnapshot",
    "Where the latest snapshot is",
    {307: Reply("The latest snapshot is there.", ("Location", *_PLACE))},
    _FOUND,
)
_READ = Operation(
    "readSnapshot",
    "Read a snapshot",
    {200: Reply("The snapshot, with the content type it was published with.", _PLACE, _ANYTHING)},
    ("503 TOO_MANY_DOWNLOADS", *COLD, *_FOUND),
)
_PUBLISH = Operation(
    "publishSnapshot",
    "Publish a snapshot, and trim what it stands for",
    {
        204: Reply(
            "Published: the stream begins at the snapshot now.",
            ("Stream-Snapshot-Offset", "Stream-Next-Offset"),
        ),
        307: ELSEWHERE,
    },
    (
        "400 INVALID_OFFSET",
        "400 INVALID_CONTENT_TYPE",
        "409 OFFSET_BEYOND_TAIL",
        "409 SNAPSHOT_EXISTS",
        "410 STREAM_OFFSET_GONE",
        "413 SNAPSHOT_TOO_LARGE",
        "503 TOO_MANY_UPLOADS",
        "503 UPLOAD_LOST",
        *FOUND,
        *COLD,
        *SERVER,
    ),
    body={
        "description": "What the stream amounts to up to the offset, of any content type; up to "
        "`server.max_snapshot_bytes`, 128 MiB by default. It may be sent in chunks.",
        "content": {"application/octet-stream": _BINARY, "text/plain": _BINARY},
    },
    description="Reads below the snapshot's offset are answered 410 from then on. Appends go on "
    "meanwhile. What is not `server.max_body_bytes` but a snapshot's own limit applies.",
)
_DELETE = Operation(
    "deleteSnapshot",
    "Never done: the only snapshot there is, is the one needed",
    {307: ELSEWHERE},
    ("409 SNAPSHOT_IN_USE", *_FOUND),
)
_BOOTSTRAP = Operation(
    "bootstrap",
    "The snapshot and every message behind it, at once",
    {
        200: Reply(
            "Parts: first the snapshot (empty if there is none), then a part for each message. "
            "From `Stream-Next-Offset` the client goes on with reads.",
            _PLACE,
            {"multipart/mixed": {"schema": {"type": "string"}}},
        )
    },
    ("400 INVALID_REQUEST", "503 TOO_MANY_DOWNLOADS", *FOUND, *COLD, *SERVER),
    description="It has no query parameters, `live` least of all.",
)

_STREAM = "/{bucket}/{stream}"
_NAMES = ("bucket", "stream")

PATHS = (
    Path(
        f"{_STREAM}/snapshot",
        "snapshots",
        {"GET": _LATEST, "HEAD": _LATEST.head()},
        _NAMES,
        IN_BUCKET,
    ),
    Path(
        f"{_STREAM}/snapshot/{{snapshot}}",
        "snapshots",
        {"GET": _READ, "HEAD": _READ.head(), "PUT": _PUBLISH, "DELETE": _DELETE},
        (*_NAMES, "snapshot"),
        IN_BUCKET,
    ),
    Path(
        f"{_STREAM}/bootstrap",
        "snapshots",
        {"GET": _BOOTSTRAP, "HEAD": _BOOTSTRAP.head()},
        _NAMES,
        IN_BUCKET,
    ),
)
