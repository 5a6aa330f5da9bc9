"""Parameters of requests, and headers of responses, each said once."""

from __future__ import annotations

from streamd.http.batches import MAX_FRAMES
from streamd.http.buckets import MAX_LISTED
from streamd.http.fields import MAX_READ_BYTES
from streamd.http.openapi.elements import Json, ref
from streamd.http.reading import FRAMED_TYPE
from streamd.http.routing import MAX_BUCKETED_BYTES, MAX_PATH_BYTES
from streamd.streams.checks import MAX_SAFE_INTEGER, MAX_TOKEN_BYTES, MAX_TTL_S
from streamd.streams.keys import RESERVED_BUCKETS

OFFSET = ref("schemas", "Offset")
TOKEN: Json = {"type": "string", "minLength": 1, "maxLength": MAX_TOKEN_BYTES}
NUMBER: Json = {"type": "integer", "minimum": 0, "maximum": MAX_SAFE_INTEGER}
_TRUE: Json = {"const": "true"}
_TEXT: Json = {"type": "string"}
_RESERVED = ", ".join(f"`{name.decode()}`" for name in sorted(RESERVED_BUCKETS))


def _whole_number(least: int, most: int) -> Json:
    return {"type": "integer", "minimum": least, "maximum": most}


_PATH: dict[str, tuple[Json, str, str]] = {
    "path": (
        {**TOKEN, "maxLength": MAX_PATH_BYTES},
        "chat",
        (
            "One segment or several, all in UTF-8. Of several the first is the bucket, made on "
            "first use; one alone lies in the bucket `_default`."
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
    "snapshot": (OFFSET, "0000000000000000_0000000000000000", "The snapshot's offset."),
}

_QUERY: dict[str, tuple[Json, str]] = {
    "offset": (
        {"anyOf": [{"enum": ["-1", "now"]}, OFFSET]},
        (
            "Where to read from: an offset given out before, `-1` for the start (the default), or "
            "`now` for the tail. One past the tail reads as the tail. Required with `live`."
        ),
    ),
    "live": (
        {"enum": ["long-poll", "sse"]},
        "How to go on at the tail: wait for one more answer, or for all there will be.",
    ),
    "cursor": (
        _TEXT,
        (
            "The `Stream-Cursor` or `streamCursor` of the answer before, so that caches tell "
            "requests apart. It never sets a position."
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
            "with a comma behind each that its length counts. Not with `live`."
        ),
    ),
    "consistency": (
        {"enum": ["linearizable", "local"], "default": "linearizable"},
        "`local` reads what this node has, without asking whether there is more.",
    ),
    "prefix": (_TEXT, "List stream ids that begin with this."),
    "after": (_TEXT, "List stream ids behind this one: `next_cursor` of the page before."),
    "limit": (
        {**_whole_number(1, MAX_LISTED), "default": MAX_LISTED},
        "How many streams a page has at most.",
    ),
}

_HEADERS: dict[str, tuple[Json, str]] = {
    "Stream-Closed": (
        _TEXT,
        (
            "`true`, in any case, closes the stream (after the body, if there is one). Any other "
            "value counts as absent."
        ),
    ),
    "Stream-Seq": (TOKEN, "Must be greater, byte by byte, than the last one appended."),
    "Stream-TTL": (
        _whole_number(0, MAX_TTL_S),
        "The stream ends this many seconds after it was last read or written.",
    ),
    "Stream-Expires-At": (
        {"type": "string", "format": "date-time"},
        "The stream ends at this time. Excludes Stream-TTL.",
    ),
    "Stream-Forked-From": (
        _TEXT,
        (
            "The path of a stream, or its URL at this host: the new one begins with its content, "
            "which is shared, not copied."
        ),
    ),
    "Stream-Fork-Offset": (
        OFFSET,
        "How far the fork goes along with its source; up to the source's tail by default.",
    ),
    "Stream-Fork-Sub-Offset": (
        NUMBER,
        (
            "How many messages (of JSON) or bytes of the append at the fork's offset still belong "
            "to the fork."
        ),
    ),
    "Producer-Id": (TOKEN, "Names an idempotent producer; with Producer-Epoch and Producer-Seq."),
    "Producer-Epoch": (NUMBER, "The producer's instance: greater after each of its restarts."),
    "Producer-Seq": (NUMBER, "Counts the producer's requests in the epoch, from 0."),
    "If-Match": (_TEXT, "ETags, or `*`: write only if the stream is in one of these states."),
    "If-None-Match": (_TEXT, "ETags, or `*`: answer 304 to a read, 412 to a PUT, if one is right."),
    "Accept-Encoding": (_TEXT, "Answers above 1 KiB are compressed: zstd, gzip or deflate."),
}

_ANSWERED: dict[str, tuple[Json, str]] = {
    "Stream-Next-Offset": (OFFSET, "The offset behind what was read or written."),
    "Stream-Up-To-Date": (
        {"enum": ["true", "false"]},
        "`true`: this is all there is for now. Only snapshots say `false`; elsewhere it is absent.",
    ),
    "Stream-Closed": (_TRUE, "The stream is closed, and ends at Stream-Next-Offset."),
    "Stream-Cursor": (_TEXT, "To be sent back as `cursor` with the next live read."),
    "Stream-TTL": (NUMBER, "The stream's sliding window in seconds."),
    "Stream-Expires-At": (_TEXT, "When the stream ends, as it was given."),
    "Stream-Snapshot-Offset": (
        {"anyOf": [OFFSET, {"const": "-1"}]},
        "The offset of the latest snapshot; `-1` where bootstrap has none.",
    ),
    "Stream-Earliest-Offset": (OFFSET, "The first offset that can still be read."),
    "Stream-First-Offset": (
        OFFSET,
        "The offset of the first record: of a batch, or of an answer to `record` or `framing`.",
    ),
    "Stream-Content-Type": (_TEXT, "The stream's own, where Content-Type is that of the framing."),
    "Stream-Last-Offset": (OFFSET, "The offset of a batch's last record."),
    "Stream-SSE-Data-Encoding": (
        {"const": "base64"},
        "The stream is not text: `data` of its events is base64.",
    ),
    "Producer-Epoch": (NUMBER, "The epoch that is in force."),
    "Producer-Seq": (NUMBER, "The last Producer-Seq that was accepted."),
    "Producer-Expected-Seq": (NUMBER, "The Producer-Seq that is next."),
    "Producer-Received-Seq": (NUMBER, "The Producer-Seq that came instead."),
    "ETag": (
        {"type": "string", "pattern": '^".*"$'},
        "Of a write or HEAD: the stream's state. Of a read: this piece of the stream.",
    ),
    "Location": (_TEXT, "Where it is."),
    "Cache-Control": (_TEXT, "Whether a cache may keep the answer."),
    "Content-Encoding": ({"enum": ["zstd", "gzip", "deflate"]}, "How the body is compressed."),
    "Accept-Encoding": ({"const": "identity"}, "How a body may be coded: not at all."),
    "Vary": (_TEXT, "The answer depends on Accept-Encoding."),
    "Retry-After": (NUMBER, "Seconds to wait before the next try."),
    "Allow": (_TEXT, "The methods of this path."),
    "Access-Control-Allow-Methods": (_TEXT, "The same, for browsers."),
    "Access-Control-Allow-Headers": (_TEXT, "The headers a browser may send."),
    "Access-Control-Max-Age": (NUMBER, "For how many seconds that may be remembered."),
    # On every answer there is, so no operation names them.
    "Access-Control-Allow-Origin": ({"const": "*"}, "On every answer."),
    "Access-Control-Expose-Headers": ({"const": "*"}, "On every answer."),
    "Cross-Origin-Resource-Policy": (
        {"enum": ["cross-origin", "same-origin"]},
        "On every answer.",
    ),
    "Content-Security-Policy": ({"const": "sandbox"}, "On every answer."),
    "X-Content-Type-Options": ({"const": "nosniff"}, "On every answer."),
}

PRODUCER = ("Producer-Id", "Producer-Epoch", "Producer-Seq")

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
    for place, group in (("query", _QUERY), ("header", _HEADERS)):
        for name, (schema, description) in group.items():
            found[name] = {
                "name": name, "in": place, "schema": schema, "description": description
            }  # fmt: skip
    return found


def headers() -> Json:
    """The document's ``components/headers``: each as one that is always there, and as one that
    is not."""
    found: Json = {}
    for name, (schema, description) in _ANSWERED.items():
        header = {"description": description, "schema": schema}
        found[name] = {**header, "required": True}
        found[f"{name}.optional"] = header
    return found
