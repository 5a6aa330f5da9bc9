"""The handler that verifies the claim of a write token (write fencing, section 9.1): it judges the
claim as for a write, without one."""

from __future__ import annotations

from streamd.http.access import write_tokens
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.refusals import error_response
from streamd.http.protocol.reserved_paths import VerifyRoute
from streamd.http.streams.service import Service
from streamd.http.subscriptions.administering import json_response
from streamd.http.subscriptions.bodies import VerifiedBody
from streamd.protocol.problems import Problem, ProblemError
from streamd.streams.commands import Result
from streamd.streams.subscriptions.commands import VerifyClaim
from streamd.streams.subscriptions.model import FenceStamp
from streamd.streams.subscriptions.tokens import TokenExpired, TokenInvalid

_ENDED = error_response(Problem.FENCED, "write token claim is fenced", reason="precheck")


async def verify(service: Service, request: Request, route: VerifyRoute) -> Response:
    """POST with a write token. The claim is judged in the log, by its time, like a write."""
    stamp = await _stamp(service, request)
    records = service.node.group.state.subscriptions
    if records.get(stamp.number) is None:
        await service.catch_up()
    found = records.get(stamp.number)
    # One that was deleted may have had this id.
    if found is not None and found.subscription_id != route.subscription_id:
        raise Problem.TOKEN_INVALID.error()
    outcome = await service.node.group.writes.propose(VerifyClaim(stamp))
    wake = outcome.wake
    if wake is not None and wake.reason == "credential":
        raise Problem.TOKEN_EXPIRED.error()
    if outcome.result is not Result.DONE or wake is None or wake.lease_until_ms is None:
        return _ENDED
    streams = await service.node.subscriptions.for_wake(wake.number)
    body = VerifiedBody(
        wake.generation,
        wake.wake_id,
        wake.holder or wake.wake_id,
        [line.path for line in streams],
        wake.lease_until_ms,
        lease_remaining_ms=max(0, wake.lease_until_ms - wake.now_ms),
    )
    return json_response(body)


async def _stamp(service: Service, request: Request) -> FenceStamp:
    """The claim whose token a request shows. Raises `ProblemError`, `Unavailable`."""
    try:
        raw = write_tokens.shown(request.headers)
    except ProblemError:
        raise Problem.TOKEN_INVALID.error() from None
    if raw is None:
        raise Problem.TOKEN_INVALID.error()
    keyring = service.node.keyring
    try:
        return write_tokens.stamp_of(keyring.verify(raw, "write"))
    except TokenInvalid:
        await service.catch_up()  # The key may be newer than what this node knows.
    except TokenExpired:
        raise Problem.TOKEN_EXPIRED.error() from None
    try:
        return write_tokens.stamp_of(keyring.verify(raw, "write"))
    except TokenInvalid:
        raise Problem.TOKEN_INVALID.error() from None
