"""Schemas of bodies: those of the structs that are encoded, and a few by hand."""

from __future__ import annotations

from typing import get_args

import msgspec

from streamd.cluster.administration import Add, Promote, Remove, Transfer
from streamd.http.admin.console import SessionBody
from streamd.http.admin.operations import NewOperation
from streamd.http.admin.signing import SignedUrl, UrlToSign
from streamd.http.admin.streams import StreamInsideBody
from streamd.http.admin.tokens import NewToken, NewTokenBody, Rotation, TokenBody, TokensBody
from streamd.http.openapi.elements import SHARED, Json
from streamd.http.protocol.limit_bodies import AllLimitsBody, LimitsBody
from streamd.http.protocol.refusals import ErrorBody
from streamd.http.streams.batches import BatchBody
from streamd.http.streams.buckets import BucketBody, BucketsBody, ListingBody
from streamd.http.subscriptions.bodies import (
    AckBody,
    Acknowledgement,
    ClaimBody,
    ForcedWakeBody,
    MoreStreams,
    NewClaim,
    NewSubscription,
    Release,
    SubscriptionBody,
    SubscriptionsBody,
    VerifiedBody,
)
from streamd.proofs.published import PublishedHead, PublishedKey
from streamd.streams.operations.model import Kind, State

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
    NewOperation,
    NewToken,
    Rotation,
    TokenBody,
    NewTokenBody,
    TokensBody,
    SessionBody,
    StreamInsideBody,
    LimitsBody,
    AllLimitsBody,
    UrlToSign,
    SignedUrl,
    PublishedHead,
    PublishedKey,
    NewSubscription,
    MoreStreams,
    NewClaim,
    Release,
    Acknowledgement,
    SubscriptionBody,
    SubscriptionsBody,
    ClaimBody,
    VerifiedBody,
    AckBody,
    ForcedWakeBody,
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

_AGE: Json = {"type": ["integer", "null"], "description": "In ms."}
_SUBSCRIPTIONS = _closed(
    {
        "idle": _COUNT,
        "waiting": {**_COUNT, "description": "With a wake that no worker has taken."},
        "leased": _COUNT,
        "failed": {**_COUNT, "description": "With a wake that could not be delivered."},
        "pending_streams": _COUNT,
        "oldest_waiting_ms": _AGE,
        "oldest_failed_ms": _AGE,
    }
)

_TIME: Json = {"type": ["integer", "null"], "description": "In ms since the epoch."}
_STEP = _closed(
    {
        "deed": {"type": "string"},
        "node_id": {"type": ["integer", "null"]},
        "text": {"type": "string"},
        "waits_for": {"type": "string"},
        "state": {"enum": ["waiting", "begun", "done"]},
        "attempts": _COUNT,
        "begun_at_ms": _TIME,
        "ended_at_ms": _TIME,
        "note": {"type": "string"},
    }
)

_OPERATION_REPORT = _closed(
    {
        "id": {"type": "integer", "minimum": 1},
        "version": _COUNT,
        "kind": {"enum": list(get_args(Kind))},
        "arguments": {"type": "object"},
        "requested_by": {"type": "string"},
        "state": {"enum": list(get_args(State))},
        "begun_at_ms": _TIME,
        "changed_at_ms": _TIME,
        "ended_at_ms": _TIME,
        "cancel_asked": {"type": "boolean"},
        "why": {"type": "string", "description": "What it waits for, or why it ended."},
        "current": {**_COUNT, "description": "How many steps are done."},
        "steps": {"type": "array", "items": _STEP},
        "voters": {**_IDS, "description": "Of the cluster when the operation ended."},
        "learners": _IDS,
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
        "subscriptions": _SUBSCRIPTIONS,
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
    "Operation": _OPERATION_REPORT,
    "Members": _closed({"leader_id": _LEADER, "voters": _IDS, "learners": _IDS}),
    "KeySet": _closed(
        {
            "keys": {
                "type": "array",
                "items": _closed(
                    {name: {"type": "string"} for name in ("kty", "crv", "kid", "use", "alg", "x")}
                ),
            }
        }
    ),
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
