"""Handlers of claims, acknowledgements, releases and callbacks (protocol section 7).

The receiver of a webhook and a worker that has claimed acknowledge in the same way.
"""

from __future__ import annotations

from streamd.auth.tokens import bearer
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.refusals import error_response
from streamd.http.protocol.reserved_paths import (
    AckRoute,
    CallbackRoute,
    ClaimRoute,
    ReleaseRoute,
    path_fault,
)
from streamd.http.streams.service import Service
from streamd.http.subscriptions.administering import (
    check_features,
    find,
    json_response,
    propose,
)
from streamd.http.subscriptions.bodies import (
    AckBody,
    Acked,
    Acknowledgement,
    ClaimBody,
    NewClaim,
    Release,
    decoded,
)
from streamd.protocol.problems import Problem
from streamd.streams.commands import Outcome, Result
from streamd.streams.offsets import parse_offset
from streamd.streams.subscriptions.checks import is_worker
from streamd.streams.subscriptions.commands import AcknowledgeWake, ClaimWake, ReleaseWake
from streamd.streams.subscriptions.model import Ack, WakeReport, WakeStamp
from streamd.streams.subscriptions.paths import key_of, normalised
from streamd.streams.subscriptions.tokens import (
    TokenExpired,
    TokenInvalid,
    TokenKind,
    WakeToken,
    is_wake_token,
)

_AUTHORIZATION = b"authorization"
_NO_CREDENTIAL = "the request needs the token of a wake or claim: Authorization: Bearer dsc_…"


async def claim(service: Service, request: Request, route: ClaimRoute) -> Response:
    """POST of a worker that claims a subscription's wake."""
    asked = decoded(request.body, NewClaim)
    if not is_worker(asked.worker):
        raise Problem.INVALID_REQUEST.error("worker: a name has printable characters")
    await service.catch_up()
    found = find(service, request, route.subscription_id)
    lease_ttl_ms = found.config.lease_ttl_ms
    check_features(service)
    await service.node.keyring.ensure()
    # A node that cannot make the tokens must not take the lease.
    service.node.keyring.current()
    command = ClaimWake(route.subscription_id, asked.worker, found.number)
    outcome = await propose(service, command)
    if outcome.result is not Result.DONE or outcome.wake is None:
        return _refused(outcome)
    wake = outcome.wake
    streams = await service.node.subscriptions.for_wake(wake.number)
    token = _minted(service, wake, "callback")
    body = ClaimBody(
        wake.wake_id,
        wake.generation,
        token,
        wake_token=token,
        write_token=_minted(service, wake, "write"),
        streams=[one.notified for one in streams],
        lease_ttl_ms=lease_ttl_ms,
    )
    return json_response(body)


async def acknowledge(
    service: Service, request: Request, route: AckRoute | CallbackRoute
) -> Response:
    """POST of how far a worker or a receiver has come; it also renews the lease, or ends it."""
    token = await _token(service, request)
    asked = decoded(request.body, Acknowledgement)
    acks = [_ack(one) for one in asked.acks]
    stamp = _stamp(token, asked)
    command = AcknowledgeWake(route.subscription_id, stamp, acks, asked.done)
    outcome = await service.node.group.writes.propose(command)
    if outcome.result is not Result.DONE or outcome.wake is None:
        return _refused(outcome)
    if asked.done:
        return json_response(AckBody(True, outcome.wake.next_wake))
    renewed = _minted(service, outcome.wake, "callback")
    write_token = _minted(service, outcome.wake, "write")
    return json_response(AckBody(True, False, renewed, write_token=write_token))


async def release(service: Service, request: Request, route: ReleaseRoute) -> Response:
    """POST of a worker that gives back what it has claimed."""
    token = await _token(service, request)
    stamp = _stamp(token, decoded(request.body, Release))
    outcome = await service.node.group.writes.propose(ReleaseWake(route.subscription_id, stamp))
    return Response(204) if outcome.result is Result.DONE else _refused(outcome)


async def _token(service: Service, request: Request) -> WakeToken:
    """The token of a wake that a request has. Raises `ProblemError`."""
    raw = bearer(request.headers.get(_AUTHORIZATION, b"")) or b""
    if not is_wake_token(raw):
        raise Problem.TOKEN_INVALID.error(_NO_CREDENTIAL)
    try:
        return _verified(service, raw)
    except TokenInvalid:
        # The key may be newer than what this node knows.
        await service.catch_up()
    try:
        return _verified(service, raw)
    except TokenInvalid:
        raise Problem.TOKEN_INVALID.error() from None


def _verified(service: Service, raw: bytes) -> WakeToken:
    try:
        return service.node.keyring.verify(raw, "callback")
    except TokenExpired:
        raise Problem.TOKEN_EXPIRED.error() from None


def _stamp(token: WakeToken, asked: Release) -> WakeStamp:
    """The wake that a request is about. Raises `ProblemError` if its token is that of another."""
    if (asked.generation, asked.wake_id) != (token.generation, token.wake_id):
        raise Problem.FENCED.error("the token is that of another wake than the body names")
    return WakeStamp(token.number, token.generation, token.wake_id)


def _ack(one: Acked) -> Ack:
    """Raises `ProblemError`."""
    path = normalised(one.stream)
    if (fault := path_fault(path)) is not None:
        raise Problem.INVALID_REQUEST.error(f"acks: {fault}")
    at = parse_offset(one.offset.encode(errors="replace"))
    if at is None:
        raise Problem.INVALID_OFFSET_409.error(f"the offset {one.offset[:64]!r} is malformed")
    return Ack(key_of(path), at.record, at.byte)


def _minted(service: Service, wake: WakeReport, kind: TokenKind) -> str:
    """A token of a wake, for as long as its lease."""
    return service.node.keyring.mint(kind, wake)


_PROBLEMS = {
    Result.SUBSCRIPTION_NOT_FOUND: Problem.SUBSCRIPTION_NOT_FOUND,
    Result.NO_PENDING_WORK: Problem.NO_PENDING_WORK,
    Result.ALREADY_CLAIMED: Problem.ALREADY_CLAIMED,
    Result.FENCED: Problem.FENCED,
    Result.ACK_INVALID: Problem.INVALID_OFFSET_409,
}
_ACK_FAULTS = {
    "unlinked": "a stream that is acknowledged is not one of the subscription's",
    "regressed": "an acknowledged offset is before the last one",
    "beyond-tail": "an acknowledged offset is past the stream's tail",
}


def _refused(outcome: Outcome) -> Response:
    if outcome.result is Result.NOT_PULL_WAKE:
        raise Problem.INVALID_REQUEST.error("the subscription's wakes are sent to a webhook")
    problem, wake = _PROBLEMS[outcome.result], outcome.wake
    if wake is None or problem is Problem.SUBSCRIPTION_NOT_FOUND:
        return error_response(problem)
    if problem is Problem.INVALID_OFFSET_409:
        return error_response(problem, _ACK_FAULTS.get(wake.reason, ""))
    if problem is Problem.NO_PENDING_WORK:
        return error_response(problem, generation=wake.generation)
    return error_response(problem, current_holder=wake.holder, generation=wake.generation)
