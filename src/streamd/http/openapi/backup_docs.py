"""Backups of a running node."""

from __future__ import annotations

from streamd.http.openapi.elements import Operation, Reply, json_content

_BEGUN = json_content(
    {
        "type": "object",
        "required": ["backup", "cluster_id", "index", "time_ms"],
        "properties": {
            "backup": {"type": "string"},
            "cluster_id": {"type": "string"},
            "index": {"type": "integer", "minimum": 0},
            "time_ms": {"type": "integer"},
        },
        "additionalProperties": False,
    }
)
_NOT_FOUND = ("404 BACKUP_NOT_FOUND",)

BEGIN = Operation(
    "beginBackup",
    "Begin a backup of this node as of now",
    {201: Reply("It has begun.", ("Cache-Control",), _BEGUN)},
    ("409 BACKUP_IN_PROGRESS", "409 HAS_COLD_STORE", "503 UNAVAILABLE"),
    description="`streamd backup save` does all of this.",
)
OBJECT = Operation(
    "backupObject",
    "The next object of a backup, or the last one again",
    {
        200: Reply(
            "A MessagePack map: `name`, below the cluster's folder, `content`, and `is_last`.",
            ("Vary?", "Content-Encoding?"),
            {"application/vnd.msgpack": {"schema": {}}},
        )
    },
    (*_NOT_FOUND, "500 RESPONSE_TOO_LARGE"),
    ("Accept-Encoding",),
)
END = Operation("endBackup", "End a backup", {204: Reply("It is.")}, _NOT_FOUND)
