"""Streams, at both of their addresses, and batches (protocol section 5)."""

from __future__ import annotations

from streamd.http.openapi.elements import OUTSIDE, Json, Operation, Reply, json_content, ref
from streamd.http.openapi.parameters import FRAMES, PRODUCER

SERVER = ("503 UNAVAILABLE", "503 OUTCOME_UNKNOWN", *OUTSIDE)
COLD = ("500 COLD_DATA_DAMAGED", "503 COLD_UNAVAILABLE")
IN_BUCKET = ("400 INVALID_BUCKET_ID", "400 INVALID_STREAM_ID")
FOUND = ("404 STREAM_NOT_FOUND", "410 STREAM_GONE")
ELSEWHERE = Reply(
    "Another node leads, and this one redirects to it (`server.non_leader`).",
    ("Location", "Cache-Control"),
)
_NOT_MODIFIED = Reply("The client has the current answer.", ("ETag", "Cache-Control", "Vary?"))
_BYTES: Json = {"schema": {"type": "string", "format": "binary"}}
_CONTENT: Json = {
    "application/octet-stream": _BYTES,
    "text/plain": {"schema": {"type": "string"}},
    "application/json": {"schema": {}},
}
_BODY: Json = {
    "description": "Bytes, of any content type. For a stream of `application/json` each element of "
    "an array is a message; anything else is one message.",
    "content": _CONTENT,
}
_CONDITION = ("412 PRECONDITION_FAILED", "404 BUCKET_NOT_FOUND", "400 INVALID_REQUEST")
_STATE = ("Stream-Next-Offset", "ETag", "Stream-Closed?")
_APPEND_ERRORS = (
    "400 EMPTY_BODY",
    "400 MISSING_CONTENT_TYPE",
    "400 INVALID_CONTENT_TYPE",
    "400 INVALID_JSON",
    "400 TOO_MANY_MESSAGES",
    "400 INVALID_PRODUCER",
    "400 INVALID_EPOCH_SEQ",
    "403 STALE_EPOCH",
    "409 STREAM_CLOSED",
    "409 CONTENT_TYPE_MISMATCH",
    "409 SEQUENCE_CONFLICT",
    "409 SEQUENCE_GAP",
    "401 UNAUTHENTICATED",
    "403 FORBIDDEN",
    "409 FENCED",
    "507 QUOTA_EXCEEDED",
    "507 DISK_LOW",
    "507 TOO_MANY_PRODUCERS",
    *FOUND,
    *_CONDITION,
    *SERVER,
)
_READ_QUERY = (
    "offset",
    "record",
    "live",
    "cursor",
    "timeout",
    "max_bytes",
    "framing",
    "proof",
    "consistency",
)
_READ_ERRORS = ("400 INVALID_REQUEST", "400 INVALID_OFFSET", *FOUND, *COLD, *SERVER)
_PROOF_ERRORS = (
    "404 NO_COLD_STORE",
    "404 NO_RECORD",
    "409 NO_LOG_HEAD",
    "409 NOT_PROVABLE",
    "503 NOT_ARCHIVED",
    "503 PROOF_IN_PROGRESS",
    "503 PROOF_TIMEOUT",
)
_FENCE = ("Write-Fence", "Write-Token", "electric-claim-token")
_DUPLICATE = "or the producer's request was a duplicate"

CREATE = Operation(
    "createStream",
    "Create a stream, or a fork of one",
    {
        201: Reply("The stream was created.", (*_STATE, "Location", "Write-Fence?")),
        200: Reply("The stream exists as asked for.", (*_STATE, "Write-Fence?")),
        307: ELSEWHERE,
    },
    (
        "400 INVALID_CONTENT_TYPE",
        "400 INVALID_JSON",
        "400 TOO_MANY_MESSAGES",
        "400 INVALID_FORK",
        "400 INVALID_OFFSET",
        "404 STREAM_NOT_FOUND",
        "409 STREAM_EXISTS",
        "409 STREAM_GONE",
        "403 TOO_MANY_STREAMS",
        "507 QUOTA_EXCEEDED",
        "507 DISK_LOW",
        "409 CONTENT_TYPE_MISMATCH",
        "410 STREAM_OFFSET_GONE",
        "501 WRITE_FENCE_UNAVAILABLE",
        *_CONDITION,
        *COLD,
        *SERVER,
    ),
    (
        "Stream-TTL",
        "Stream-Expires-At",
        "Stream-Closed",
        "Stream-Forked-From",
        "Stream-Fork-Offset",
        "Stream-Fork-Sub-Offset",
        "Write-Fence",
        "If-Match",
        "If-None-Match",
    ),
    _BODY,
    "Content-Type is the stream's, `application/octet-stream` by default; a fork inherits it. A "
    "body is the stream's first content.",
)
APPEND = Operation(
    "appendToStream",
    "Append, close, or both",
    {
        200: Reply(
            "A producer's request was appended.", (*_STATE, "Producer-Epoch", "Producer-Seq")
        ),
        204: Reply(
            f"Appended without a producer, or closed without a body, {_DUPLICATE}.",
            (*_STATE, "Producer-Epoch?", "Producer-Seq?"),
        ),
        307: ELSEWHERE,
    },
    _APPEND_ERRORS,
    ("Stream-Seq", "Stream-Closed", *PRODUCER, *_FENCE, "If-Match"),
    _BODY,
    "An acknowledged append is on disk; in a cluster, on the disks of a majority.",
)
READ = Operation(
    "readStream",
    "Read a stream, and follow it live",
    {
        200: Reply(
            "The records from the offset on: all or a piece, as `Stream-Up-To-Date` says. With "
            "`live=sse`, events `data` and `control`; the latter carry what headers otherwise do.",
            (
                "Stream-Next-Offset?",
                "Stream-Up-To-Date?",
                "Stream-Closed?",
                "Stream-Cursor?",
                "Stream-SSE-Data-Encoding?",
                "Stream-First-Offset?",
                "Stream-Content-Type?",
                "ETag?",
                "Cache-Control",
                "Content-Encoding?",
                "Vary?",
            ),
            {
                "application/json": {"schema": {"type": ["array", "object"]}},
                "text/event-stream": {"schema": {}},
                "*/*": {"schema": {}},
            },
        ),
        204: Reply(
            "A long-poll at the tail: it timed out, or the stream is closed.",
            (
                "Stream-Next-Offset",
                "Stream-Up-To-Date",
                "Stream-Closed?",
                "Stream-Cursor?",
                "Cache-Control",
            ),
        ),
        304: _NOT_MODIFIED,
    },
    ("410 STREAM_OFFSET_GONE", "503 TOO_MANY_READERS", *_READ_ERRORS, *_PROOF_ERRORS),
    (*_READ_QUERY, "If-None-Match", "Accept-Encoding"),
)
HEAD = Operation(
    "describeStream",
    "Metadata of a stream",
    {
        200: Reply(
            "The stream's content type and state.",
            (
                *_STATE,
                "Stream-TTL?",
                "Stream-Expires-At?",
                "Stream-Snapshot-Offset?",
                "Stream-First-Offset?",
                "Write-Fence?",
                "Write-Fence-Sealed-Generation?",
                "Write-Fence-Sealed-Offset?",
                "Cache-Control",
            ),
        ),
        304: _NOT_MODIFIED,
    },
    ("410 STREAM_OFFSET_GONE", *_READ_ERRORS),
    (*_READ_QUERY, "If-None-Match"),
    description="Unlike other reads it does not renew a sliding window. Of the query only "
    "`consistency` and `record` matter, but all of it is checked.",
)
DELETE = Operation(
    "deleteStream",
    "Delete a stream",
    {204: Reply("The stream was deleted; forks of it stay."), 307: ELSEWHERE},
    (*FOUND, *_CONDITION, *SERVER),
    ("If-Match",),
)

BATCH = Operation(
    "appendBatch",
    "Append several records in one step",
    {
        200: Reply(
            "Every record was appended.",
            (
                *_STATE,
                "Stream-First-Offset",
                "Stream-Last-Offset",
                "Producer-Epoch?",
                "Producer-Seq?",
            ),
            json_content(ref("schemas", "BatchBody")),
        ),
        204: Reply(
            "The producer's request was a duplicate.",
            (
                *_STATE,
                "Producer-Epoch",
                "Producer-Seq",
                "Stream-First-Offset?",
                "Stream-Last-Offset?",
            ),
        ),
        307: ELSEWHERE,
    },
    ("400 INVALID_FRAME", "400 TOO_MANY_FRAMES", *_APPEND_ERRORS),
    ("Stream-Seq", "Stream-Closed", *PRODUCER, *_FENCE, "If-Match"),
    {"required": True, "description": FRAMES, "content": _CONTENT},
    "Content-Type is that of the payloads. Each is stored as if it had been posted by itself, but "
    "all of them together or none.",
)
