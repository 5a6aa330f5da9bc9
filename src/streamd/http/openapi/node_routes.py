"""Routes for operators: health, metrics, the cluster, the cold store, and this document."""

from __future__ import annotations

from streamd.http.access.admin_guard import PUBLIC_PATHS
from streamd.http.openapi.elements import Json, Operation, Path, Reply, json_content, ref
from streamd.http.openapi.errors import OUTSIDE

_ALIVE = json_content(ref("schemas", "Alive"))
_OBJECT = json_content({"type": "object"})
_TEXT: Json = {"text/plain": {"schema": {}}}
_EMPTY: Json = {"required": False, "content": json_content({"type": "object", "maxProperties": 0})}


def _read_only(template: str, operation: Operation) -> Path:
    return _path(template, {"GET": operation, "HEAD": operation.head()})


def _path(template: str, operations: dict[str, Operation]) -> Path:
    guarded = template.encode() not in PUBLIC_PATHS
    return Path(template, "node", operations, guarded=guarded)


def _readiness(operation_id: str, summary: str) -> Operation:
    return Operation(
        operation_id,
        summary,
        {200: Reply("Yes.", (), _ALIVE), 503: Reply("No.", (), _ALIVE)},
    )


def _report(
    template: str,
    name: str,
    summary: str,
    reply: str,
    content: Json,
    errors: tuple[str, ...] = (),
    parameters: tuple[str, ...] = (),
) -> Path:
    """A report that may be large, and is compressed for clients that take that."""
    replies = {200: Reply(reply, ("Content-Encoding?", "Vary?"), content)}
    errors = (*errors, "500 RESPONSE_TOO_LARGE")
    parameters = (*parameters, "Accept-Encoding")
    return _read_only(template, Operation(name, summary, replies, errors, parameters))


def _admin_command(
    name: str, summary: str, errors: tuple[str, ...], *, required: bool = True
) -> Path:
    body: Json = {"required": required, "content": json_content(ref("schemas", name))}
    operation = Operation(
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
        body=body,
        description="Any node takes the request, and forwards it if only the leader can do it.",
    )
    return _path(f"/cluster/{name.lower()}", {"POST": operation})


def _work(work: str, summary: str) -> Path:
    """Work that the leader's cold store starts at once."""
    operation = Operation(
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
    return _path(f"/cluster/cold/{work}", {"POST": operation})


_CHANGE = ("409 CHANGE_IN_PROGRESS", "409 INVALID_CONFIGURATION")
_TRANSFER = ("404 NOT_A_VOTER", "409 NOT_TRANSFERRED")

PATHS = (
    _read_only(
        "/healthz",
        Operation("health", "Whether the process answers", {200: Reply("It does.", (), _ALIVE)}),
    ),
    _read_only(
        "/readyz/local",
        _readiness("readyLocal", "Whether this node has recovered and reaches its leader"),
    ),
    _read_only(
        "/readyz/cluster",
        _readiness(
            "readyCluster", "Whether this node is in contact with a leader and does not lag"
        ),
    ),
    _report(
        "/metrics",
        "metrics",
        "Metrics for Prometheus",
        "All metrics.",
        _TEXT,
    ),
    _report("/openapi.json", "openapi", "This document", "The document.", _OBJECT),
    _report(
        "/cluster/status",
        "clusterStatus",
        "The status of this node and its cluster",
        "The status as this node sees it.",
        json_content(ref("schemas", "Status")),
        ("400 INVALID_REQUEST",),
        ("at",),
    ),
    _report(
        "/cluster/cold",
        "coldStatus",
        "The status of the cold store",
        "The status as this node sees it.",
        _OBJECT,
        ("400 INVALID_REQUEST", "404 NO_COLD_STORE"),
        ("at",),
    ),
    _report(
        "/cluster/debug/tasks",
        "tasks",
        "The tasks of this node's process, and where each waits",
        "A tree, a task in each line.",
        _TEXT,
    ),
    _report(
        "/cluster/debug/memory",
        "memory",
        "The memory of this node's process, and how full its queues and caches are",
        "Sizes in bytes; below `held` what there is `now`, and its `limit`.",
        _OBJECT,
    ),
    _report(
        "/cluster/debug/profile",
        "profile",
        "Where the threads of this node's process are, sampled for some seconds",
        "Collapsed stacks, for flame graphs.",
        _TEXT,
        ("400 INVALID_REQUEST", "409 PROFILE_IN_PROGRESS"),
        ("seconds",),
    ),
    _work("flush", "Flush hot bytes to the cold store now"),
    _work("gc", "Delete objects from the cold store that nothing refers to"),
    _work("scrub", "Read every object in the cold store and verify its digest"),
    _path(
        "/cluster/snapshot",
        {
            "POST": Operation(
                "compactLog",
                "Store this node's state and compact its log",
                {200: Reply("Done.", (), json_content(ref("schemas", "Compacted")))},
                body=_EMPTY,
            )
        },
    ),
    _admin_command(
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
    ),
    _admin_command(
        "Promote",
        "Make a learner a voter",
        (
            "404 NOT_A_LEARNER",
            "404 NOT_A_VOTER",
            "409 NOT_CAUGHT_UP",
            "409 RELEASE_TOO_OLD",
            *_CHANGE,
        ),
    ),
    _admin_command(
        "Remove",
        "Remove a node from the cluster",
        ("404 NOT_A_MEMBER", "409 LAST_VOTER", *_TRANSFER, *_CHANGE),
    ),
    _admin_command("Transfer", "Transfer leadership", _TRANSFER, required=False),
)
