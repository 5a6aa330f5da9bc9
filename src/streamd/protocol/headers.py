"""Every HTTP header that streamd gives a meaning: the one table of their names.

It feeds what the server looks up and refuses if repeated, what browsers may send (CORS), the
OpenAPI document, the client, and the table in docs/api.md. Headers that only frame a message (Host,
Content-Length, Transfer-Encoding, Connection, Expect) are left to the front door.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from streamd.streams.bounds import MAX_SAFE_INTEGER, MAX_TOKEN_BYTES, MAX_TTL_S

Json = dict[str, Any]

OFFSET: Json = {"$ref": "#/components/schemas/Offset"}
TOKEN: Json = {"type": "string", "minLength": 1, "maxLength": MAX_TOKEN_BYTES}
NUMBER: Json = {"type": "integer", "minimum": 0, "maximum": MAX_SAFE_INTEGER}
TEXT: Json = {"type": "string"}
_TRUE: Json = {"const": "true"}


class Use(NamedTuple):
    """What a header means in one direction, and the JSON Schema of its value."""

    meaning: str
    schema: Json


class Header(str):
    """A header's name, which compares and prints as text, with a description.

    `source` is the section that defines it: a bare number of the Durable Streams protocol, `ext`
    of the extensions for buckets, snapshots and bootstrap, `WF` of that for write fencing.
    `reference` is the behaviour of the reference server, `streamd` an addition of ours. `request`
    or `response` is None if the header has no meaning in that direction. Two different values of a
    `single` header would be ambiguous, so a request that repeats it is refused.
    """

    key: bytes  # lower case, as requests are keyed
    source: str
    request: Use | None
    response: Use | None
    single: bool

    def __new__(
        cls,
        name: str,
        source: str,
        *,
        request: Use | None = None,
        response: Use | None = None,
        single: bool = False,
    ) -> Header:
        header = super().__new__(cls, name)
        header.key = name.lower().encode()
        header.source, header.request, header.response = source, request, response
        header.single = single
        return header


# -- streams ----------------------------------------------------------------------------------

CONTENT_TYPE = Header(
    "Content-Type", "5.1, 5.2",
    request=Use("The type of the body; with PUT the stream's, with POST the same again.", TEXT),
    response=Use("The type of the body.", TEXT),
    single=True,
)  # fmt: skip
STREAM_CLOSED = Header(
    "Stream-Closed", "4.1",
    request=Use(
        "`true`, in any case, closes the stream (after the body, if there is one). Any other "
        "value counts as absent.", TEXT,
    ),
    response=Use("The stream is closed, and ends at Stream-Next-Offset.", _TRUE),
    single=True,
)  # fmt: skip
STREAM_NEXT_OFFSET = Header(
    "Stream-Next-Offset", "5.1 to 5.7",
    response=Use("The offset after what was read or written.", OFFSET),
)  # fmt: skip
STREAM_UP_TO_DATE = Header(
    "Stream-Up-To-Date", "5.6, 5.7, ext 2.5",
    response=Use(
        "`true`: this is all there is for now. Only snapshots say `false`; elsewhere it is "
        "absent.", {"enum": ["true", "false"]},
    ),
)  # fmt: skip
STREAM_CURSOR = Header(
    "Stream-Cursor", "5.7, 8.1",
    response=Use("Send it back as `cursor` with the next live read.", TEXT),
)  # fmt: skip
STREAM_SEQ = Header(
    "Stream-Seq", "5.2, 10.6",
    request=Use("Must be greater, byte by byte, than the last one appended.", TOKEN),
    single=True,
)  # fmt: skip
STREAM_TTL = Header(
    "Stream-TTL", "5.1",
    request=Use(
        "The stream ends this many seconds after it was last read or written.",
        {"type": "integer", "minimum": 0, "maximum": MAX_TTL_S},
    ),
    response=Use("The stream's sliding window in seconds.", NUMBER),
    single=True,
)  # fmt: skip
STREAM_EXPIRES_AT = Header(
    "Stream-Expires-At", "5.1",
    request=Use(
        "The stream ends at this time. Excludes Stream-TTL.",
        {"type": "string", "format": "date-time"},
    ),
    response=Use("When the stream ends, in the form that the client gave.", TEXT),
    single=True,
)  # fmt: skip
STREAM_SSE_DATA_ENCODING = Header(
    "Stream-SSE-Data-Encoding", "5.8, ext 4",
    response=Use(
        "The stream is not text: `data` of its events is base64.", {"const": "base64"}
    ),
)  # fmt: skip

# -- forks ------------------------------------------------------------------------------------

STREAM_FORKED_FROM = Header(
    "Stream-Forked-From", "reference",
    request=Use(
        "The path of a stream, or its URL at this host: the new one begins with its content, "
        "which is shared, not copied.", TEXT,
    ),
    single=True,
)  # fmt: skip
STREAM_FORK_OFFSET = Header(
    "Stream-Fork-Offset", "reference",
    request=Use(
        "Where the fork leaves its source; the source's tail by default.", OFFSET
    ),
    single=True,
)  # fmt: skip
STREAM_FORK_SUB_OFFSET = Header(
    "Stream-Fork-Sub-Offset", "reference",
    request=Use(
        "How many messages (of JSON) or bytes of the append at the fork's offset still belong "
        "to the fork.", NUMBER,
    ),
    single=True,
)  # fmt: skip

# -- producers --------------------------------------------------------------------------------

PRODUCER_ID = Header(
    "Producer-Id", "5.2.1",
    request=Use("Names an idempotent producer; with Producer-Epoch and Producer-Seq.", TOKEN),
    single=True,
)  # fmt: skip
PRODUCER_EPOCH = Header(
    "Producer-Epoch", "5.2.1",
    request=Use("The producer's instance: greater after each of its restarts.", NUMBER),
    response=Use("The epoch that is in force.", NUMBER),
    single=True,
)  # fmt: skip
PRODUCER_SEQ = Header(
    "Producer-Seq", "5.2.1",
    request=Use("Counts the producer's requests in the epoch, from 0.", NUMBER),
    response=Use("The last Producer-Seq that was accepted.", NUMBER),
    single=True,
)  # fmt: skip

# -- write fencing ----------------------------------------------------------------------------

WRITE_FENCE = Header(
    "Write-Fence", "WF 3, 5",
    request=Use(
        "`true`. PUT: the stream takes writes of a claim under its write token only. POST: refuse "
        "the write if it has no valid write token. Any other value counts as absent.", TEXT,
    ),
    response=Use("The stream was created with it.", _TRUE),
    single=True,
)  # fmt: skip
# These two may be repeated: a request that does so presents no valid token (section 4).
WRITE_TOKEN = Header(
    "Write-Token", "WF 4",
    request=Use("The write token of the claim under which a fenced write is made.", TEXT),
)  # fmt: skip
ELECTRIC_CLAIM_TOKEN = Header(
    "electric-claim-token", "WF 12",
    request=Use("Another name of Write-Token.", TEXT),
)  # fmt: skip

# -- snapshots, records and batches -----------------------------------------------------------

STREAM_SNAPSHOT_OFFSET = Header(
    "Stream-Snapshot-Offset", "ext 2.4, 2.5, 3.2",
    response=Use(
        "The offset of the latest snapshot; `-1` in a bootstrap without one.",
        {"anyOf": [OFFSET, {"const": "-1"}]},
    ),
)  # fmt: skip
STREAM_EARLIEST_OFFSET = Header(
    "Stream-Earliest-Offset", "streamd",
    response=Use("The first offset that can still be read.", OFFSET),
)  # fmt: skip
STREAM_FIRST_OFFSET = Header(
    "Stream-First-Offset", "streamd",
    response=Use(
        "The offset of the first record: of a batch, or of an answer to `record` or `framing`.",
        OFFSET,
    ),
)  # fmt: skip
STREAM_CONTENT_TYPE = Header(
    "Stream-Content-Type", "streamd",
    response=Use("The stream's own, where Content-Type is that of the framing.", TEXT),
)  # fmt: skip

# -- conditions, caches and codings -----------------------------------------------------------

IF_MATCH = Header(
    "If-Match", "RFC 9110, 13.1.1",
    request=Use("ETags, or `*`: write only if the stream is in one of these states.", TEXT),
)  # fmt: skip
IF_NONE_MATCH = Header(
    "If-None-Match", "8.1; RFC 9110, 13.1.2",
    request=Use(
        "ETags, or `*`: if one matches, a read is answered 304 and a PUT 412.", TEXT
    ),
)  # fmt: skip
ETAG = Header(
    "ETag", "5.6, 8.1",
    response=Use(
        "Of a write or HEAD: the stream's state. Of a read: this piece of the stream.",
        {"type": "string", "pattern": '^".*"$'},
    ),
)  # fmt: skip
ACCEPT_ENCODING = Header(
    "Accept-Encoding", "RFC 9110, 12.5.3",
    request=Use("Answers above 1 KiB are compressed: zstd, gzip or deflate.", TEXT),
    response=Use("Bodies of requests are taken in no coding but this.", {"const": "identity"}),
)  # fmt: skip
CONTENT_ENCODING = Header(
    "Content-Encoding", "RFC 9110, 8.4",
    response=Use("How the body is compressed.", {"enum": ["zstd", "gzip", "deflate"]}),
)  # fmt: skip

# -- any answer ------------------------------------------------------------------------------

LOCATION = Header("Location", "5.1; RFC 9110, 10.2.2", response=Use("Where it is.", TEXT))
RETRY_AFTER = Header(
    "Retry-After", "RFC 9110, 10.2.3",
    response=Use("Seconds to wait before the next try.", NUMBER),
)  # fmt: skip

PRODUCER_EXPECTED_SEQ = Header(
    "Producer-Expected-Seq", "5.2.1",
    response=Use("The Producer-Seq that is next.", NUMBER),
)  # fmt: skip

# Answers carry these as literal lines; no code looks them up.
_ONLY_SENT = (
    ("Producer-Received-Seq", "5.2.1", "The Producer-Seq that came instead.", NUMBER),
    ("Stream-Last-Offset", "streamd", "The offset of a batch's last record.", OFFSET),
    (
        "Write-Fence-Sealed-Generation", "WF 7",
        "The generation of the last claim that was sealed on the stream.", NUMBER,
    ),
    (
        "Write-Fence-Sealed-Offset", "WF 7",
        "The offset after which neither that claim nor one before it appends anything.", OFFSET,
    ),
    ("Cache-Control", "8.1, 10.7", "Whether a cache may keep the answer.", TEXT),
    ("Vary", "RFC 9110, 12.5.5", "The request headers on which the answer depends.", TEXT),
    ("WWW-Authenticate", "RFC 6750, 3", "How to authenticate, and what is missing.", TEXT),
    ("RateLimit-Policy", "draft httpapi-ratelimit", "The limit that is used up.", TEXT),
    ("RateLimit", "draft httpapi-ratelimit", "In how many seconds it no longer is.", TEXT),
    ("Allow", "RFC 9110, 10.2.1", "The methods of this path.", TEXT),
    ("Access-Control-Allow-Methods", "Fetch", "The methods of this path, for browsers.", TEXT),
    ("Access-Control-Allow-Headers", "Fetch", "The headers a browser may send.", TEXT),
    ("Access-Control-Max-Age", "Fetch", "For how many seconds that may be remembered.", NUMBER),
    ("Access-Control-Allow-Origin", "Fetch", "On every answer.", {"const": "*"}),
    ("Access-Control-Expose-Headers", "Fetch", "On every answer.", {"const": "*"}),
    (
        "Cross-Origin-Resource-Policy", "10.7", "On every answer.",
        {"enum": ["cross-origin", "same-origin"]},
    ),
    ("Content-Security-Policy", "streamd", "On every answer.", {"const": "sandbox"}),
    ("X-Content-Type-Options", "10.7", "On every answer.", {"const": "nosniff"}),
)  # fmt: skip

HEADERS = (
    *(value for value in list(vars().values()) if isinstance(value, Header)),
    *(
        Header(name, source, response=Use(meaning, schema))
        for name, source, meaning, schema in _ONLY_SENT
    ),
)
