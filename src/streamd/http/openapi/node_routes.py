"""What operators ask a node: health, metrics, the cluster, and this document."""

from __future__ import annotations

from streamd.http.admin_guard import PUBLIC_PATHS
from streamd.http.openapi.elements import Json, Operation, Path, Reply, json_content, ref

_COMPRESSED = ("Content-Encoding?", "Vary?")
_LARGE = ("500 RESPONSE_TOO_LARGE",)
_ALIVE = json_content(ref("schemas", "Alive"))
_EMPTY: Json = {"required": False, "content": json_content({"type": "object", "maxProperties": 0})}


def _looked_at(template: str, operation: Operation) -> Path:
    return _path(template, {"GET": operation, "HEAD": operation.head()})


def _path(template: str, operations: dict[str, Operation]) -> Path:
    guarded = template.encode() not in PUBLIC_PATHS
    return Path(template, "node", operations, guarded=guarded)


def _readiness(operation_id: str, summary: str) -> Operation:
    return Operation(
        operation_id,
        summary,
        {200: Reply("It is.", (), _ALIVE), 503: Reply("Not yet, or not now.", (), _ALIVE)},
    )


def _wish(name: str, summary: str, errors: tuple[str, ...], *, required: bool = True) -> Path:
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
        ),
        body=body,
        description="Any node may be asked; what only the leader can do is passed on to it.",
    )
    return _path(f"/cluster/{name.lower()}", {"POST": operation})


def _work(work: str, summary: str) -> Path:
    """Something that the leader's cold tier is told to do now."""
    operation = Operation(
        f"{work}Cold",
        summary,
        {
            202: Reply("It will.", (), json_content({"type": "object"})),
            307: Reply(
                "The leader is elsewhere.",
                ("Location", "Cache-Control"),
                json_content({"type": "object"}),
            ),
        },
        ("404 NO_COLD_STORE", "503 UNAVAILABLE"),
        body=_EMPTY,
    )
    return _path(f"/cluster/cold/{work}", {"POST": operation})


_CHANGE = ("409 CHANGE_IN_PROGRESS", "409 INVALID_CONFIGURATION")
_TRANSFER = ("404 NOT_A_VOTER", "409 NOT_TRANSFERRED")

PATHS = (
    _looked_at(
        "/healthz",
        Operation("health", "Whether the process answers", {200: Reply("It does.", (), _ALIVE)}),
    ),
    _looked_at("/readyz/local", _readiness("readyLocal", "Whether this node has recovered")),
    _looked_at("/readyz/cluster", _readiness("readyCluster", "Whether it keeps up with a leader")),
    _looked_at(
        "/metrics",
        Operation(
            "metrics",
            "Metrics for Prometheus",
            {200: Reply("All metrics.", _COMPRESSED, {"text/plain": {"schema": {}}})},
            _LARGE,
            ("Accept-Encoding",),
        ),
    ),
    _looked_at(
        "/openapi.json",
        Operation(
            "openapi",
            "This document",
            {200: Reply("It.", _COMPRESSED, json_content({"type": "object"}))},
            _LARGE,
            ("Accept-Encoding",),
        ),
    ),
    _looked_at(
        "/cluster/status",
        Operation(
            "clusterStatus",
            "Where this node stands",
            {200: Reply("Its view.", _COMPRESSED, json_content(ref("schemas", "Status")))},
            _LARGE,
            ("Accept-Encoding",),
        ),
    ),
    _looked_at(
        "/cluster/cold",
        Operation(
            "coldStatus",
            "Where the cold tier stands",
            {200: Reply("Its view.", _COMPRESSED, json_content({"type": "object"}))},
            ("404 NO_COLD_STORE", *_LARGE),
            ("Accept-Encoding",),
        ),
    ),
    _work("flush", "Move to the cold store what is only here"),
    _work("gc", "Remove from the cold store what nothing needs"),
    _work("scrub", "Read all objects in the cold store, and compare them with their names"),
    _path(
        "/cluster/snapshot",
        {
            "POST": Operation(
                "compactLog",
                "Store this node's state and cut its log",
                {200: Reply("Done.", (), json_content(ref("schemas", "Compacted")))},
                body=_EMPTY,
            )
        },
    ),
    _wish(
        "Add",
        "Add a node as a learner",
        ("409 MEMBER_ALREADY", "409 NOT_EMPTY", "409 NOT_JOINED", "502 NO_ANSWER", *_CHANGE),
    ),
    _wish(
        "Promote",
        "Make a learner a voter",
        ("404 NOT_A_LEARNER", "404 NOT_A_VOTER", "409 NOT_CAUGHT_UP", *_CHANGE),
    ),
    _wish(
        "Remove",
        "Take a node out of the cluster",
        ("404 NOT_A_MEMBER", "409 LAST_VOTER", *_TRANSFER, *_CHANGE),
    ),
    _wish("Transfer", "Hand over the lead", _TRANSFER, required=False),
)
