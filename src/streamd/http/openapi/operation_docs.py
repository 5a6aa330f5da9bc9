"""Operations on the cluster in several steps, and the feature level."""

from __future__ import annotations

from streamd.http.openapi.elements import OUTSIDE, Json, Operation, Reply, json_content, ref

_OPERATION = json_content(ref("schemas", "Operation"))
_FEATURES = json_content({"type": "object"})
_EMPTY: Json = {"required": False, "content": json_content({"type": "object", "maxProperties": 0})}
_COMPRESSED = ("Cache-Control", "Vary?", "Content-Encoding?")

_ASKED = ("409 NOT_A_CLUSTER", "503 UNAVAILABLE", *OUTSIDE)
_DONE = (*_ASKED, "409 OPERATION_REFUSED", "503 OUTCOME_UNKNOWN")
_NOT_FOUND = ("404 OPERATION_NOT_FOUND",)

LIST = Operation(
    "listOperations",
    "The latest operations, the newest one last",
    {
        200: Reply(
            "They are.",
            _COMPRESSED,
            json_content(
                {
                    "type": "object",
                    "required": ["operations"],
                    "properties": {
                        "operations": {"type": "array", "items": ref("schemas", "Operation")}
                    },
                    "additionalProperties": False,
                }
            ),
        )
    },
    (*_ASKED, "500 RESPONSE_TOO_LARGE"),
    ("Accept-Encoding",),
)
SHOW = Operation(
    "operation",
    "An operation: its steps, how far it is, and what it waits for",
    {200: Reply("It is.", _COMPRESSED, _OPERATION)},
    (*_ASKED, *_NOT_FOUND, "500 RESPONSE_TOO_LARGE"),
    ("Accept-Encoding",),
)
BEGIN = Operation(
    "beginOperation",
    "Begin an operation, which the leader carries out, and the next one carries on",
    {
        200: Reply(
            "With `dry_run`: the steps that it would have.",
            ("Cache-Control",),
            json_content(
                {
                    "type": "object",
                    "required": ["steps"],
                    "properties": {"steps": {"type": "array", "items": {"type": "object"}}},
                }
            ),
        ),
        201: Reply("It has begun.", ("Cache-Control",), _OPERATION),
    },
    ("400 INVALID_REQUEST", *_DONE, "409 OPERATION_IN_PROGRESS"),
    body={"required": True, "content": json_content(ref("schemas", "NewOperation"))},
    description="Any node takes the request. There is one operation at a time.",
)


def _act(name: str, summary: str, errors: tuple[str, ...] = ()) -> Operation:
    return Operation(
        f"{name}Operation",
        summary,
        {200: Reply("Done: the operation at present.", ("Cache-Control",), _OPERATION)},
        (*_DONE, *_NOT_FOUND, "409 OPERATION_ENDED", *errors),
        body=_EMPTY,
    )


ACTS = {
    "pause": _act("pause", "Begin no further step of an operation until it is resumed"),
    "resume": _act("resume", "Carry on with a paused operation"),
    "cancel": _act("cancel", "End an operation once its step in progress has ended"),
    "done": _act(
        "confirm", "Tell an operation that its operator has done a step", ("409 NOT_WAITING",)
    ),
}
FEATURES = Operation(
    "features",
    "The feature level of the cluster's log, and what each member understands",
    {200: Reply("They are.", _COMPRESSED, _FEATURES)},
    (*_ASKED, "500 RESPONSE_TOO_LARGE"),
    ("Accept-Encoding",),
)
RAISE = Operation(
    "raiseFeatures",
    "Raise the feature level as far as every member understands",
    {200: Reply("It is raised.", ("Cache-Control",), _FEATURES)},
    (*_DONE, "409 FEATURES_NOT_RAISED"),
    body=_EMPTY,
    description="There is no way back: an earlier release cannot read the log from then on.",
)
