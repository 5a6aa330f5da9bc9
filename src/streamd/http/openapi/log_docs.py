"""Signed heads of the log, and their keys."""

from __future__ import annotations

from streamd.http.openapi.elements import Json, Operation, Reply, json_content, ref

_NO_STORE = ("Cache-Control",)
_EMPTY: Json = {"required": False, "content": json_content({"type": "object", "maxProperties": 0})}

HEAD = Operation(
    "logHead",
    "The signed head of the tree over the archived log",
    {
        200: Reply(
            "A signed note, and the keys.", _NO_STORE, json_content(ref("schemas", "PublishedHead"))
        )
    },
    (
        "400 INVALID_REQUEST",
        "404 NO_COLD_STORE",
        "409 NO_LOG_HEAD",
        "500 COLD_DATA_DAMAGED",
        "503 COLD_UNAVAILABLE",
    ),
    ("since",),
    description=(
        "From this node's own state, signed with this node's key. The first of the `keys` is the "
        "cluster's first one, and each vouches for the next."
    ),
)
ROTATE = Operation(
    "rotateLogKey",
    "Replace the key with which this node signs heads of the log",
    {200: Reply("The new key.", _NO_STORE, json_content(ref("schemas", "PublishedKey")))},
    (
        "404 NO_COLD_STORE",
        "409 TOO_MANY_LOG_KEYS",
        "503 UNAVAILABLE",
        "503 OUTCOME_UNKNOWN",
    ),
    body=_EMPTY,
    description="The present key vouches for the new one.",
)
