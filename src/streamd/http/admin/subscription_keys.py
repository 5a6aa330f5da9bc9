"""The keys of subscriptions, for operators."""

from __future__ import annotations

import msgspec
from quart import Response, request

from streamd.audit_trail.trail import note
from streamd.group.log_formats import SUBSCRIPTIONS_FORMAT
from streamd.http.admin.operator import Answer, Operator
from streamd.protocol.problems import Problem
from streamd.streams.subscriptions.signing_keys import TooManySubscriptionKeys
from streamd.streams.subscriptions.webhook_texts import kid_of


class KeyRotation(msgspec.Struct, forbid_unknown_fields=True):
    """With `revoke` no earlier key stays published, and no token that one of them made is valid."""

    revoke: bool = False


class SubscriptionKeyBody(msgspec.Struct):
    """The name of the key in use, and of all that are published, the newest first."""

    kid: str
    published: list[str]


async def rotate(operator: Operator) -> Answer:
    """Replace the key that signs webhooks by a new one."""
    node = operator.node
    if not node.log_formats.may_use(SUBSCRIPTIONS_FORMAT):
        raise Problem.FEATURES_NOT_RAISED.error(
            "subscriptions need a feature level that this cluster does not have yet: run this "
            "release on every member, then `streamd cluster features --raise`"
        )
    asked = msgspec.json.decode(await request.get_data() or b"{}", type=KeyRotation)
    note(revoke=asked.revoke)
    try:
        key = await node.keyring.rotate(revokes=asked.revoke)
    except TooManySubscriptionKeys:
        raise Problem.TOO_MANY_SUBSCRIPTION_KEYS.error() from None
    kid = kid_of(key.public_key)
    note(kid=kid)
    published = [kid_of(one.public_key) for one in node.keyring.known.values()]
    body = SubscriptionKeyBody(kid, published[::-1])
    response = Response(msgspec.json.encode(body), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response, 200
