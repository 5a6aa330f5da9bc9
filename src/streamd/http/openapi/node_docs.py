"""For operators: health, metrics, the cluster, the cold store, and this document."""

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


_CHANGE = ("409 CHANGE_IN_PROGRESS", "409 INVALID_CONFIGURATION")
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
COLD = _report(
    "coldStatus",
    "The status of the cold store",
    "The status as this node sees it.",
    _OBJECT,
    ("400 INVALID_REQUEST", "404 NO_COLD_STORE"),
    ("at",),
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
    ("404 NOT_A_LEARNER", "404 NOT_A_VOTER", "409 NOT_CAUGHT_UP", "409 RELEASE_TOO_OLD", *_CHANGE),
)
REMOVE = _admin_command(
    "Remove",
    "Remove a node from the cluster",
    ("404 NOT_A_MEMBER", "409 LAST_VOTER", *_TRANSFER, *_CHANGE),
)
TRANSFER = _admin_command("Transfer", "Transfer leadership", _TRANSFER, required=False)
