"""For operators: health, metrics, the cluster, the cold store, heads of the log, backups, and this
document."""

from __future__ import annotations

from streamd.http.openapi.elements import OUTSIDE, Json, Operation, Reply, json_content, ref

_ALIVE = json_content(ref("schemas", "Alive"))
_OBJECT = json_content({"type": "object"})
_TEXT: Json = {"text/plain": {"schema": {}}}
_EMPTY: Json = {"required": False, "content": json_content({"type": "object", "maxProperties": 0})}


def _readiness(operation_id: str, summary: str) -> Operation:
    return Operation(
        operation_id,
        summary,
        {200: Reply("Yes.", (), _ALIVE), 503: Reply("No.", (), _ALIVE)},
    )


def _report(
    name: str,
    summary: str,
    reply: str,
    content: Json,
    errors: tuple[str, ...] = (),
    parameters: tuple[str, ...] = (),
) -> Operation:
    """A report that may be large, and is compressed for clients that take that."""
    replies = {200: Reply(reply, ("Content-Encoding?", "Vary?"), content)}
    errors = (*errors, "500 RESPONSE_TOO_LARGE")
    return Operation(name, summary, replies, errors, (*parameters, "Accept-Encoding"))


def _admin_command(
    name: str, summary: str, errors: tuple[str, ...], *, required: bool = True
) -> Operation:
    return Operation(
        f"{name.lower()}Member",
        summary,
        {200: Reply("Done.", (), json_content(ref("schemas", "Members")))},
        (
            "400 INVALID_REQUEST",
            "409 NOT_A_CLUSTER",
            *errors,
            "503 UNAVAILABLE",
            "503 OUTCOME_UNKNOWN",
            *OUTSIDE,
        ),
        body={"required": required, "content": json_content(ref("schemas", name))},
        description="Any node takes the request, and forwards it if only the leader can do it.",
    )


def _cold_work(work: str, summary: str) -> Operation:
    """Work that the leader's cold store starts at once."""
    return Operation(
        f"{work}Cold",
        summary,
        {
            202: Reply("The leader has started it.", (), _OBJECT),
            307: Reply(
                "Another node leads, and its release takes no orders from nodes.",
                ("Location", "Cache-Control"),
                _OBJECT,
            ),
        },
        ("404 NO_COLD_STORE", "503 UNAVAILABLE", "503 OUTCOME_UNKNOWN"),
        body=_EMPTY,
    )


def alias(first: Operation, template: str) -> Operation:
    """The description of an operation under the name that pages of other servers of the protocol
    use; `template` is its first one."""
    also = f"Another name of `{template}`."
    return first._replace(description=f"{first.description} {also}".strip())


_CHANGE = ("409 CHANGE_IN_PROGRESS", "409 INVALID_CONFIGURATION")
_CHANGE_OF_VOTERS = ("409 QUORUM_AT_RISK", *_CHANGE)
_TRANSFER = ("404 NOT_A_VOTER", "409 NOT_TRANSFERRED")

HEALTH = Operation("health", "Whether the process answers", {200: Reply("It does.", (), _ALIVE)})
READY_LOCAL = _readiness("readyLocal", "Whether this node has recovered and reaches its leader")
READY_CLUSTER = _readiness(
    "readyCluster", "Whether this node is in contact with a leader and does not lag"
)
METRICS = _report("metrics", "Metrics for Prometheus", "All metrics.", _TEXT)
OPENAPI = _report("openapi", "This document", "The document.", _OBJECT)
STATUS = _report(
    "clusterStatus",
    "The status of this node and its cluster",
    "The status as this node sees it.",
    json_content(ref("schemas", "Status")),
    ("400 INVALID_REQUEST",),
    ("at",),
)
STREAM = _report(
    "streamInside",
    "Where a stream's bytes are, its producers, and what it was forked from",
    "As far as this node knows.",
    json_content(ref("schemas", "StreamInsideBody")),
    ("400 INVALID_REQUEST", "404 STREAM_NOT_FOUND", "503 UNAVAILABLE"),
    ("stream_path",),
)
HISTORY = _report(
    "nodeHistory",
    "Rates and latencies of this node over the last hour, for charts",
    "By columns, with a value for each time in `at_ms`; null where nothing was measured.",
    _OBJECT,
    ("400 INVALID_REQUEST",),
    ("after_ms",),
)
COLD = _report(
    "coldStatus",
    "The status of the cold store",
    "The status as this node sees it.",
    _OBJECT,
    ("400 INVALID_REQUEST", "404 NO_COLD_STORE"),
    ("at",),
)
FACTS = _report(
    "nodeFacts",
    "What a member knows about itself and its machine, for `streamd doctor`",
    "The report, or the `error` that prevented it; when it was asked for and answered.",
    _OBJECT,
    ("400 INVALID_REQUEST", "404 NOT_A_MEMBER"),
)
TASKS = _report(
    "tasks",
    "The tasks of this node's process, and where each waits",
    "A tree, a task in each line.",
    _TEXT,
)
MEMORY = _report(
    "memory",
    "The memory of this node's process, and how full its queues and caches are",
    "Sizes in bytes; below `held` what there is `now`, and its `limit`.",
    _OBJECT,
)
PROFILE = _report(
    "profile",
    "Where the threads of this node's process are, sampled for some seconds",
    "Collapsed stacks, for flame graphs.",
    _TEXT,
    ("400 INVALID_REQUEST", "409 PROFILE_IN_PROGRESS"),
    ("seconds",),
)
NODE_REPORT = _report(
    "nodeReport",
    "A report about a member, for `streamd debug bundle`",
    "The report, or the `error` that prevented it; when it was asked for and answered.",
    _OBJECT,
    ("400 INVALID_REQUEST", "404 NOT_A_MEMBER"),
)
FLUSH = _cold_work("flush", "Flush hot bytes to the cold store now")
GC = _cold_work("gc", "Delete objects from the cold store that nothing refers to")
SCRUB = _cold_work("scrub", "Read every object in the cold store and verify its digest")
COMPACT = Operation(
    "compactLog",
    "Store this node's state and compact its log",
    {200: Reply("Done.", (), json_content(ref("schemas", "Compacted")))},
    body=_EMPTY,
)
ADD = _admin_command(
    "Add",
    "Add a node as a learner",
    (
        "409 MEMBER_ALREADY",
        "409 NOT_EMPTY",
        "409 NOT_JOINED",
        "409 RELEASE_TOO_OLD",
        "502 NO_ANSWER",
        *_CHANGE,
    ),
)
PROMOTE = _admin_command(
    "Promote",
    "Make a learner a voter",
    (
        "404 NOT_A_LEARNER",
        "404 NOT_A_VOTER",
        "409 NOT_CAUGHT_UP",
        "409 RELEASE_TOO_OLD",
        *_CHANGE_OF_VOTERS,
    ),
)
REMOVE = _admin_command(
    "Remove",
    "Remove a node from the cluster",
    ("404 NOT_A_MEMBER", "409 LAST_VOTER", *_TRANSFER, *_CHANGE_OF_VOTERS),
)
TRANSFER = _admin_command("Transfer", "Transfer leadership", _TRANSFER, required=False)

LOG_HEAD = Operation(
    "logHead",
    "The signed head of the tree over the archived log",
    {
        200: Reply(
            "A signed note, and the keys.",
            ("Cache-Control",),
            json_content(ref("schemas", "PublishedHead")),
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
ROTATE_LOG_KEY = Operation(
    "rotateLogKey",
    "Replace the key with which this node signs heads of the log",
    {200: Reply("The new key.", ("Cache-Control",), json_content(ref("schemas", "PublishedKey")))},
    (
        "404 NO_COLD_STORE",
        "409 TOO_MANY_LOG_KEYS",
        "503 UNAVAILABLE",
        "503 OUTCOME_UNKNOWN",
    ),
    body=_EMPTY,
    description="The present key vouches for the new one.",
)

ROTATE_SUBSCRIPTION_KEY = Operation(
    "rotateSubscriptionKey",
    "Replace the key with which the cluster signs webhooks",
    {
        200: Reply(
            "The names of the key in use and of all that are published, the newest first.",
            ("Cache-Control",),
            json_content(
                {
                    "type": "object",
                    "required": ["kid", "published"],
                    "properties": {
                        "kid": {"type": "string"},
                        "published": {"type": "array", "items": {"type": "string"}},
                    },
                }
            ),
        )
    },
    (
        "409 FEATURES_NOT_RAISED",
        "409 TOO_MANY_SUBSCRIPTION_KEYS",
        "503 UNAVAILABLE",
        "503 OUTCOME_UNKNOWN",
    ),
    body={
        "required": False,
        "content": json_content(
            {
                "type": "object",
                "additionalProperties": False,
                "properties": {"revoke": {"type": "boolean", "default": False}},
            }
        ),
    },
    description="The key before the new one stays published, and others for a day. With `revoke` "
    "none of them stays, and no token that they made is valid.",
)

_BACKUP = json_content(
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
BEGIN_BACKUP = Operation(
    "beginBackup",
    "Begin a backup of this node as of now",
    {201: Reply("It has begun.", ("Cache-Control",), _BACKUP)},
    ("409 BACKUP_IN_PROGRESS", "409 HAS_COLD_STORE", "503 UNAVAILABLE"),
    description="`streamd backup save` does all of this.",
)
BACKUP_OBJECT = Operation(
    "backupObject",
    "The next object of a backup, or the last one again",
    {
        200: Reply(
            "A MessagePack map: `name`, below the cluster's folder, `content`, and `is_last`.",
            ("Vary?", "Content-Encoding?"),
            {"application/vnd.msgpack": {"schema": {}}},
        )
    },
    ("404 BACKUP_NOT_FOUND", "500 RESPONSE_TOO_LARGE"),
    ("Accept-Encoding",),
)
END_BACKUP = Operation(
    "endBackup", "End a backup", {204: Reply("It is.")}, ("404 BACKUP_NOT_FOUND",)
)
