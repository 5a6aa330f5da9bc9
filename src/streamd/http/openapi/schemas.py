"""Schemas of bodies: those of the structs that are encoded, and a few by hand."""

from __future__ import annotations

import msgspec

from streamd.cluster.administration import Add, Promote, Remove, Transfer
from streamd.http.admin.signing import SignedUrl, UrlToSign
from streamd.http.admin.tokens import NewToken, NewTokenBody, Rotation, TokenBody, TokensBody
from streamd.http.openapi.elements import SHARED, Json
from streamd.http.protocol.limit_bodies import AllLimitsBody, LimitsBody
from streamd.http.protocol.refusals import ErrorBody
from streamd.http.streams.batches import BatchBody
from streamd.http.streams.buckets import BucketBody, BucketsBody, ListingBody
from streamd.proofs.published import PublishedHead, PublishedKey

_STRUCTS = (
    ErrorBody,
    BucketBody,
    BucketsBody,
    ListingBody,
    BatchBody,
    Add,
    Promote,
    Remove,
    Transfer,
    NewToken,
    Rotation,
    TokenBody,
    NewTokenBody,
    TokensBody,
    LimitsBody,
    AllLimitsBody,
    UrlToSign,
    SignedUrl,
    PublishedHead,
    PublishedKey,
)

_COUNT: Json = {"type": "integer", "minimum": 0}
_IDS: Json = {"type": "array", "items": {"type": "integer"}}
_LEADER: Json = {"type": ["integer", "null"]}


def _closed(properties: Json, optional: Json | None = None) -> Json:
    """An object with these properties and no others."""
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": list(properties),
        "additionalProperties": False,
    }


_MEMBER = _closed(
    {
        "node_id": {"type": "integer"},
        "peer_address": {"type": "string"},
        "client_address": {"type": "string"},
        "voter": {"type": "boolean"},
        "version": {"type": "string"},
    },
    optional={
        "match_index": _COUNT,
        "behind_entries": {"type": "integer"},
        "behind_bytes": _COUNT,
        "flow": {"type": "string"},
        "last_contact_ms": _COUNT,
        "connected": {"type": "boolean"},
        "lacks": {"type": "string"},
    },
)

_DISK = _closed(
    {
        "free_bytes": {"type": ["integer", "null"]},
        "min_free_bytes": _COUNT,
        "low": {"type": "boolean"},
    }
)

_OPERATION = _closed(
    {
        "id": {"type": "integer"},
        "kind": {"type": "string"},
        "state": {"type": "string"},
        "why": {"type": "string"},
    }
)

_STATUS = _closed(
    {
        "cluster_id": {"type": "string"},
        "cluster_name": {"type": ["string", "null"]},
        "node_id": {"type": "integer"},
        "version": {"type": "string"},
        "role": {"type": "string"},
        "leader_id": _LEADER,
        "term": _COUNT,
        "commit_index": _COUNT,
        "last_applied": _COUNT,
        "last_log_index": _COUNT,
        "first_log_index": _COUNT,
        "voters": _IDS,
        "learners": _IDS,
        "streams": _COUNT,
        "features": _COUNT,
    },
    optional={
        "incarnation": {"type": "string"},
        "operation": {"anyOf": [_OPERATION, {"type": "null"}]},
        "membership": {"enum": ["member", "removed", "data lost", "waiting"]},
        "advice": {"type": ["string", "null"]},
        "members": {"type": "array", "items": _MEMBER},
        "disk": _DISK,
    },
)

_OTHERS: Json = {
    "Offset": {
        "type": "string",
        "pattern": "^[0-9]{16}_[0-9]{16}$",
        "description": "A position in a stream. Offsets are opaque, and sort as strings.",
    },
    "Alive": _closed({"status": {"type": "string"}}),
    "Status": _STATUS,
    "Members": _closed({"leader_id": _LEADER, "voters": _IDS, "learners": _IDS}),
    "Compacted": _closed({"first_log_index": _COUNT}),
}


def schemas() -> Json:
    """The document's ``components/schemas``."""
    _, found = msgspec.json.schema_components(_STRUCTS, ref_template="#/components/schemas/{name}")
    for schema in found.values():
        # Between nodes a tag distinguishes the admin commands; over HTTP the path does.
        if schema["properties"].pop("type", None):
            schema["required"].remove("type")
    found["Error"] = found.pop("ErrorBody")
    for status, codes in SHARED.items():
        found[f"Code{status}"] = {"enum": codes}
    return {**found, **_OTHERS}
