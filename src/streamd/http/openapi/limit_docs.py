"""The administration of limits."""

from __future__ import annotations

from typing import NamedTuple

from streamd.http.openapi.elements import OUTSIDE, Operation, Reply, json_content, ref

_ASKED = ("503 UNAVAILABLE", *OUTSIDE)
_NOT_FOUND = ("404 LIMITS_NOT_FOUND",)
_LIMITS = json_content(ref("schemas", "LimitsBody"))

LIST = Operation(
    "listLimits",
    "All limits of buckets and identities",
    {
        200: Reply(
            "They are.",
            ("Vary?", "Content-Encoding?"),
            json_content(ref("schemas", "AllLimitsBody")),
        )
    },
    (*_ASKED, "500 RESPONSE_TOO_LARGE"),
    ("Accept-Encoding",),
)


class OfOneKind(NamedTuple):
    """What can be done with the limits of one bucket or identity."""

    show: Operation
    set: Operation
    clear: Operation


def of_kind(kinds: str, one: str) -> OfOneKind:
    """The operations for buckets or for identities, by plural and singular."""
    return OfOneKind(
        Operation(
            f"{one}Limits",
            f"The limits that are set for {kinds} of this name",
            {200: Reply("They are.", ("Vary?", "Content-Encoding?"), _LIMITS)},
            (*_ASKED, *_NOT_FOUND),
            ("Accept-Encoding",),
        ),
        Operation(
            f"set{one.title()}Limits",
            "Set all limits at once; an empty object exempts from those of `*`",
            {200: Reply("They hold from now on.", ("Cache-Control",), _LIMITS)},
            (
                "400 INVALID_REQUEST",
                "409 TOO_MANY_LIMITS",
                "409 FEATURES_NOT_RAISED",
                *_ASKED,
                "503 OUTCOME_UNKNOWN",
            ),
            body={"required": True, "content": _LIMITS},
        ),
        Operation(
            f"clear{one.title()}Limits",
            "Clear the limits; those of `*` apply then",
            {204: Reply("They are cleared.")},
            (*_ASKED, *_NOT_FOUND, "503 OUTCOME_UNKNOWN"),
        ),
    )
