"""Buckets and their listings (extensions section 1)."""

from __future__ import annotations

from streamd.http.openapi.elements import Operation, Reply, json_content, ref
from streamd.http.openapi.stream_docs import ELSEWHERE, SERVER

_ERRORS = ("400 INVALID_REQUEST", "404 BUCKET_NOT_FOUND", *SERVER)
_TOLD = ("Cache-Control", "Content-Encoding?", "Vary?")

LOOK = Operation(
    "describeBucket",
    "Describe a bucket",
    {200: Reply("The bucket.", _TOLD, json_content(ref("schemas", "BucketBody")))},
    _ERRORS,
    ("consistency", "Accept-Encoding"),
)
CREATE = Operation(
    "createBucket",
    "Create a bucket",
    {201: Reply("The bucket was created.", ("Location",)), 307: ELSEWHERE},
    ("409 BUCKET_EXISTS", *SERVER),
)
DELETE = Operation(
    "deleteBucket",
    "Delete an empty bucket",
    {204: Reply("The bucket was deleted."), 307: ELSEWHERE},
    ("404 BUCKET_NOT_FOUND", "409 BUCKET_NOT_EMPTY", *SERVER),
)
LIST = Operation(
    "listStreams",
    "List a bucket's streams",
    {
        200: Reply(
            "A page of streams, in the byte order of their ids.",
            _TOLD,
            json_content(ref("schemas", "ListingBody")),
        )
    },
    _ERRORS,
    ("prefix", "after", "limit", "consistency", "Accept-Encoding"),
    description="While `has_more`, ask again with `next_cursor` as `after`.",
)

LIST_BUCKETS = Operation(
    "listBuckets",
    "List buckets",
    {
        200: Reply(
            "A page of the buckets that the sender may list, in the byte order of their ids.",
            _TOLD,
            json_content(ref("schemas", "BucketsBody")),
        ),
        303: Reply(
            "The sender is a browser (`Accept: text/html`): where the console is.",
            ("Location", "Cache-Control", "Vary"),
        ),
    },
    ("400 INVALID_REQUEST", *SERVER),
    ("prefix", "after", "limit", "consistency", "Accept-Encoding"),
    description="While `has_more`, ask again with `next_cursor` as `after`.",
)
