"""Subscriptions (protocol sections 6 and 7)."""

from __future__ import annotations

from streamd.http.openapi.elements import Json, Operation, Reply, json_content, ref
from streamd.http.openapi.stream_docs import ELSEWHERE, SERVER

_TOLD = ("Cache-Control", "Content-Encoding?", "Vary?")
_NOT_FOUND = ("404 SUBSCRIPTION_NOT_FOUND", *SERVER)
_BODY = ("400 INVALID_REQUEST", "413 BODY_TOO_LARGE")
_TOKEN = ("401 TOKEN_INVALID", "401 TOKEN_EXPIRED", "409 FENCED")
_MAKES = ("409 FEATURES_NOT_RAISED", "503 SUBSCRIPTION_KEYS_SEALED")
_PAGE = ("after", "limit", "Accept-Encoding")

BELOW = ("400 INVALID_PATH",)


def _body(name: str) -> Json:
    return {"required": True, "content": json_content(ref("schemas", name))}


_RECORD = json_content(ref("schemas", "SubscriptionBody"))

PUT = Operation(
    "putSubscription",
    "Create a subscription, or confirm it",
    {
        200: Reply("It exists, and is as asked for.", _TOLD, _RECORD),
        201: Reply("It was created.", ("Cache-Control",), _RECORD),
        307: ELSEWHERE,
    },
    (
        *_BODY,
        "400 WEBHOOK_URL_REJECTED",
        "409 SUBSCRIPTION_ALREADY_EXISTS",
        "409 TOO_MANY_SUBSCRIPTIONS",
        *_MAKES,
        *SERVER,
    ),
    ("Accept-Encoding",),
    body=_body("NewSubscription"),
    description=(
        "Streams that it names or matches now begin at their tails; those that are created later "
        "from their beginning. In a pattern `*` is one segment of a path and `**` any number. A "
        "token needs `subscribe` for all that the subscription may tell of, and `append` for its "
        "wake stream."
    ),
)
SHOW = Operation(
    "subscription",
    "A subscription, with a page of its streams",
    {200: Reply("It is.", _TOLD, _RECORD)},
    ("400 INVALID_REQUEST", *_NOT_FOUND),
    _PAGE,
    description="While `has_more`, ask again with `next_cursor` as `after`.",
)
DELETE = Operation(
    "deleteSubscription",
    "Delete a subscription: what is under way for it fails",
    {204: Reply("It was deleted."), 307: ELSEWHERE},
    _NOT_FOUND,
)
LIST = Operation(
    "listSubscriptions",
    "The subscriptions that the sender may use, in the order in which they were made",
    {200: Reply("A page of them.", _TOLD, json_content(ref("schemas", "SubscriptionsBody")))},
    ("400 INVALID_REQUEST", *SERVER),
    _PAGE,
    description="While `has_more`, ask again with `next_cursor` as `after`.",
)
LINK = Operation(
    "linkStreams",
    "Name further streams, which begin at their tails",
    {204: Reply("The subscription names them."), 307: ELSEWHERE},
    (*_BODY, "409 TOO_MANY_SUBSCRIPTIONS", *_NOT_FOUND),
    body=_body("MoreStreams"),
)
UNLINK = Operation(
    "unlinkStream",
    "Name a stream no longer; the pattern may still match it",
    {204: Reply("The subscription does not name it."), 307: ELSEWHERE},
    _NOT_FOUND,
    description="The slashes of the path may be escaped (`%2F`), or not.",
)
FORCE_WAKE = Operation(
    "testSubscription",
    "Wake a subscription without an append, to see whether its worker comes",
    {
        200: Reply(
            "The wake, which may have been there before.",
            ("Cache-Control",),
            json_content(ref("schemas", "ForcedWakeBody")),
        ),
        307: ELSEWHERE,
    },
    _NOT_FOUND,
)
CLAIM = Operation(
    "claimSubscription",
    "Claim the wake of a pull-wake subscription",
    {
        200: Reply("It is claimed.", _TOLD, json_content(ref("schemas", "ClaimBody"))),
        307: ELSEWHERE,
    },
    (*_BODY, "409 ALREADY_CLAIMED", "409 NO_PENDING_WORK", *_MAKES, *_NOT_FOUND),
    ("Accept-Encoding",),
    body=_body("NewClaim"),
    description="The lease begins. Only `token` acknowledges, renews it, and gives it back.",
)
_ACKNOWLEDGED = {
    200: Reply(
        "It is acknowledged. With `done` the lease has ended, else it is renewed.",
        ("Cache-Control",),
        json_content(ref("schemas", "AckBody")),
    ),
    307: ELSEWHERE,
}
ACK = Operation(
    "acknowledge",
    "Acknowledge what was claimed, or say that the worker lives",
    _ACKNOWLEDGED,
    (*_BODY, *_TOKEN, "409 INVALID_OFFSET", *_NOT_FOUND),
    body=_body("Acknowledgement"),
    description="All acknowledgements are taken, or none.",
)
CALLBACK = ACK._replace(
    operation_id="callback", summary="Acknowledge a webhook, or say that its receiver lives"
)
RELEASE = Operation(
    "releaseSubscription",
    "Give back what was claimed, for another worker",
    {204: Reply("The lease has ended."), 307: ELSEWHERE},
    (*_BODY, *_TOKEN, *_NOT_FOUND),
    body=_body("Release"),
)
VERIFY = Operation(
    "verifyClaim",
    "Verify the claim of a write token, without a write",
    {
        200: Reply(
            "The claim is the present one.",
            ("Cache-Control",),
            json_content(ref("schemas", "VerifiedBody")),
        ),
        307: ELSEWHERE,
    },
    (*_TOKEN, "503 SUBSCRIPTION_KEYS_SEALED", *SERVER),
    ("Write-Token", "electric-claim-token"),
    description="The write token is the only credential. Nothing is renewed. A body is not looked "
    "at.",
)
KEY_SET = Operation(
    "webhookKeys",
    "The public keys by which webhooks are signed",
    {
        200: Reply(
            "A JSON Web Key Set (RFC 7517).",
            _TOLD,
            {"application/jwk-set+json": {"schema": ref("schemas", "KeySet")}},
        )
    },
    SERVER,
    ("Accept-Encoding",),
)
