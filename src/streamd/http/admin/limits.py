"""The administration of limits."""

from __future__ import annotations

from urllib.parse import unquote

import msgspec
from quart import Response, request

from streamd.audit_trail.trail import note
from streamd.group.log_formats import LIMITS_FORMAT, SUBSCRIPTIONS_FORMAT
from streamd.group.proposals import Unavailable
from streamd.http.admin.operator import Answer, Operator
from streamd.http.protocol.limit_bodies import AllLimitsBody, LimitsBody
from streamd.protocol.problems import Problem
from streamd.streams.checks import fault
from streamd.streams.commands import Result, SetLimits
from streamd.streams.limits import QUOTAS, Kind

_ENCODER = msgspec.json.Encoder()
_FAULTS = {
    "name": "the name is that of no bucket or identity",
    "limits": f"{', '.join(QUOTAS['bucket'])} are limits of buckets, "
    f"{', '.join(QUOTAS['identity'])} of identities",
}


async def list_all(operator: Operator) -> Answer:
    """All limits of buckets and identities."""
    await operator.node.group.reads.catch_up()
    return _json(AllLimitsBody(_bodies(operator, "bucket"), _bodies(operator, "identity")))


def _bodies(operator: Operator, kind: Kind) -> dict[str, LimitsBody]:
    rows = operator.node.group.state.limits.rows(kind)
    return {name: LimitsBody.of(rows[name]) for name in sorted(rows)}


async def show(operator: Operator, kind: Kind, name: str) -> Answer:
    """The limits that are set for a name."""
    name = unquote(name)
    await operator.node.group.reads.catch_up()
    found = operator.node.group.state.limits.get(kind, name)
    if found is None:
        raise Problem.LIMITS_NOT_FOUND.error()
    return _json(LimitsBody.of(found))


async def set_all(operator: Operator, kind: Kind, name: str) -> Answer:
    """Set all limits of a bucket or an identity."""
    body = msgspec.json.decode(await request.get_data(), type=LimitsBody)
    note(limits=msgspec.to_builtins(body))
    command = SetLimits(kind, unquote(name), body.limits())
    wrong = fault(command)
    if wrong is not None:
        raise Problem.INVALID_REQUEST.error(_FAULTS[wrong])
    if not operator.node.log_formats.may_use(LIMITS_FORMAT):
        raise Unavailable(
            "this node does not know that all members understand limits: all must run "
            "this release, and be connected, when the first limits are set"
        )
    if body.max_subscriptions is not None and not operator.node.log_formats.may_use(
        SUBSCRIPTIONS_FORMAT
    ):
        raise Problem.FEATURES_NOT_RAISED.error(
            "max_subscriptions needs a higher feature level: once all members run this release, "
            "raise it by streamd cluster features --raise"
        )
    if await _propose(operator, command) is Result.TOO_MANY_LIMITS:
        raise Problem.TOO_MANY_LIMITS.error()
    return _json(body)


async def clear(operator: Operator, kind: Kind, name: str) -> Answer:
    """Clear the limits of a bucket or an identity."""
    name = unquote(name)
    await operator.node.group.reads.catch_up()
    known = operator.node.group.state.limits.get(kind, name)
    if known is None or await _propose(operator, SetLimits(kind, name)) is not Result.DELETED:
        raise Problem.LIMITS_NOT_FOUND.error()
    return Response(b""), 204


async def _propose(operator: Operator, command: SetLimits) -> Result:
    """The result, once this node knows it."""
    outcome = await operator.node.group.writes.propose(command)
    await operator.node.group.reads.catch_up()
    return outcome.result


def _json(body: msgspec.Struct) -> Answer:
    response = Response(_ENCODER.encode(body), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response, 200
