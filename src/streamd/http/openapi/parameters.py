"""Parameters of requests; headers of both directions come from the table of headers."""

from __future__ import annotations

from streamd.http.openapi.elements import Json
from streamd.http.protocol.fields import MAX_READ_BYTES
from streamd.http.protocol.routing import MAX_PATH_BYTES
from streamd.http.streams.batches import MAX_FRAMES
from streamd.http.streams.buckets import MAX_LISTED
from streamd.http.streams.reading import FRAMED_TYPE
from streamd.node.reports import DEBUG_REPORTS
from streamd.process.diagnostics import MAX_PROFILE_S
from streamd.protocol.headers import (
    CONTENT_TYPE,
    HEADERS,
    NUMBER,
    OFFSET,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
    TEXT,
    TOKEN,
)
from streamd.streams.bounds import MAX_BUCKETED_BYTES
from streamd.streams.keys import RESERVED_BUCKETS
from streamd.streams.subscriptions.model import MAX_ID_CHARACTERS

_RESERVED = ", ".join(f"`{name.decode()}`" for name in sorted(RESERVED_BUCKETS))


def _whole_number(least: int, most: int) -> Json:
    return {"type": "integer", "minimum": least, "maximum": most}


_PATH: dict[str, tuple[Json, str, str]] = {
    "path": (
        {**TOKEN, "maxLength": MAX_PATH_BYTES},
        "chat",
        (
            "One segment or several, all in UTF-8. The first of several is the bucket, created on "
            "first use; a single one lies in the bucket `_default`."
        ),
    ),
    "bucket": (
        {"type": "string", "pattern": "^[a-z0-9_-]{4,64}$"},
        "agents",
        f"A bucket's id. Reserved: {_RESERVED}.",
    ),
    "stream": (
        {**TOKEN, "maxLength": MAX_BUCKETED_BYTES - 5},
        "run-1",
        (
            "A stream's id in its bucket, and not `streams`: UTF-8 without / and `..`; both ids "
            f"and the / between them have at most {MAX_BUCKETED_BYTES} bytes."
        ),
    ),
    "subscription": (
        {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARACTERS},
        "mailer",
        "The id of a subscription, which its creator chooses: Unicode without /.",
    ),
    "node": ({"type": "integer", "minimum": 1}, "1", "The id of a member of the cluster."),
    "report": ({"enum": list(DEBUG_REPORTS)}, "status", "What the report is about."),
    "backup": ({"type": "string"}, "0" * 32, "The id of a backup."),
    "number": ({"type": "integer", "minimum": 0}, "0", "Objects count from 0."),
    "operation": ({"type": "integer", "minimum": 1}, "1", "The number of an operation."),
    "file": ({"type": "string"}, "main.js", "The name of a file."),
    "token": ({"type": "string"}, "ci", "A token's id or name."),
    "name": ({"type": "string"}, "agents", "A bucket or an identity, or `*` for all others."),
    "snapshot": (OFFSET, "0000000000000000_0000000000000000", "The snapshot's offset."),
}

_QUERY: dict[str, tuple[Json, str]] = {
    "offset": (
        {"anyOf": [{"enum": ["-1", "now"]}, OFFSET]},
        (
            "Where to read from: an offset from an earlier answer, `-1` for the start (the "
            "default), or `now` for the tail. One past the tail reads as the tail. Required with "
            "`live`."
        ),
    ),
    "live": (
        {"enum": ["long-poll", "sse", "false"]},
        (
            "How to continue at the tail: wait for one more answer, or follow the stream as "
            "events. `false` is as if it were missing."
        ),
    ),
    "cursor": (
        TEXT,
        (
            "The `Stream-Cursor` or `streamCursor` of the previous answer, by which caches "
            "distinguish requests. It does not set a position."
        ),
    ),
    "timeout": (
        {"type": "number", "minimum": 0, "maximum": 999_999, "multipleOf": 0.001},
        "For how many seconds a long-poll waits, at most `server.long_poll_timeout_ms`.",
    ),
    "max_bytes": (
        _whole_number(0, MAX_READ_BYTES),
        "About how many bytes one answer may have (1 MiB by default); a record is never cut.",
    ),
    "record": (
        NUMBER,
        (
            "Read from where this record begins, counted from 0, instead of from an offset; "
            "`Stream-First-Offset` tells the offset. One past the tail reads as the tail."
        ),
    ),
    "framing": (
        {"const": "lengths"},
        (
            f"Answer in `{FRAMED_TYPE}`, of at most about 1 MiB: how many records, and the length "
            "in bytes of each, as four bytes each, big-endian; then the records, JSON messages "
            "with a comma after each that its length counts. Not with `live`."
        ),
    ),
    "proof": (
        {"const": "record"},
        (
            "Answer with a proof, in JSON, that the first record of the read is in the archived "
            "log. Not with `live` or `framing`."
        ),
    ),
    "consistency": (
        {"enum": ["linearizable", "local"], "default": "linearizable"},
        "`local` reads this node's state, which may lag, without asking the leader.",
    ),
    "at": (
        {"const": "leader"},
        "Ask the leader, through this node; if it does not answer soon, this node's own report.",
    ),
    "since": (
        NUMBER,
        (
            "How many entries an earlier head has: the answer proves by `consistency` that its "
            "tree begins with that one."
        ),
    ),
    "stream_path": (TEXT, "The path of a stream, with its first slash."),
    "after_ms": (
        _whole_number(0, 2**53),
        "Only what was noted after this time, in milliseconds since the epoch.",
    ),
    "seconds": (_whole_number(1, MAX_PROFILE_S), "For how long samples are taken. Required."),
    "prefix": (TEXT, "List ids that begin with this."),
    "after": (TEXT, "List ids after this one: `next_cursor` of the previous page."),
    "limit": (
        {**_whole_number(1, MAX_LISTED), "default": MAX_LISTED},
        "How many entries a page has at most.",
    ),
}

# OpenAPI has a place of its own for the type of a body.
_OURS = [header for header in HEADERS if header != CONTENT_TYPE]

PRODUCER = (PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ)

FRAMES = (
    f"At most {MAX_FRAMES} frames, each the payload's length in bytes as four bytes, big-endian, "
    "then the payload."
)


def parameters() -> Json:
    """The document's ``components/parameters``."""
    found: Json = {
        name: {
            "name": name,
            "in": "path",
            "required": True,
            "schema": schema,
            "description": description,
            "example": example,
        }
        for name, (schema, example, description) in _PATH.items()
    }
    sent = {str(one): (one.request.schema, one.request.meaning) for one in _OURS if one.request}
    for place, group in (("query", _QUERY), ("header", sent)):
        for name, (schema, description) in group.items():
            found[name] = {
                "name": name, "in": place, "schema": schema, "description": description
            }  # fmt: skip
    return found


def headers() -> Json:
    """The document's ``components/headers``: each as one that is always there, and as one that
    is optional."""
    found: Json = {}
    for one in _OURS:
        if one.response:
            header = {"description": one.response.meaning, "schema": one.response.schema}
            found[str(one)] = {**header, "required": True}
            found[f"{one}.optional"] = header
    return found
