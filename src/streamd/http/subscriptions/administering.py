"""Handlers of the administration of subscriptions (protocol sections 6.2 to 6.5)."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import msgspec

from streamd.audit_trail.trail import note
from streamd.group.log_formats import SUBSCRIPTIONS_FORMAT
from streamd.http.access import subscribing
from streamd.http.protocol.fields import limit_of, parse_query, text_of, whole_number
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.refusals import error_response
from streamd.http.protocol.reserved_paths import (
    ForcedWakeRoute,
    KeySetRoute,
    LinkRoute,
    LinksRoute,
    SubscriptionRoute,
    SubscriptionsRoute,
    path_fault,
)
from streamd.http.streams.service import Service
from streamd.http.subscriptions import views
from streamd.http.subscriptions.bodies import (
    EntryBody,
    ForcedWakeBody,
    MoreStreams,
    NewSubscription,
    SubscriptionsBody,
    decoded,
)
from streamd.node.subscriptions import MAX_STREAMS
from streamd.protocol.problems import Problem
from streamd.streams.bounds import MAX_SAFE_INTEGER
from streamd.streams.commands import Command, Outcome, Result
from streamd.streams.subscriptions import globs
from streamd.streams.subscriptions.commands import (
    DeleteSubscription,
    LinkStreams,
    PutSubscription,
    UnlinkStream,
    WakeSubscription,
)
from streamd.streams.subscriptions.model import MAX_NAMED, Subscription, SubscriptionConfig
from streamd.streams.subscriptions.paths import key_of, normalised
from streamd.streams.subscriptions.webhook_texts import JWKS_CONTENT_TYPE
from streamd.streams.subscriptions.webhook_urls import (
    WebhookUrlRejected,
    parse_network,
    parse_webhook_url,
)

JSON_HEAD = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"
_KEY_SET_HEAD = b"Content-Type: %b\r\nCache-Control: public, max-age=300\r\n" % (
    JWKS_CONTENT_TYPE.encode()
)
MAX_LISTED = 1000
# Subscriptions and streams that they name, for one page: the sender may use few of them or many,
# and everything else waits meanwhile.
_MAX_LOOKED_AT = 10_000
_ENCODER = msgspec.json.Encoder()


async def put(service: Service, request: Request, route: SubscriptionRoute) -> Response:
    """PUT of a subscription: create it, or confirm that it is as asked for."""
    asked, wanted = decoded(request.body, NewSubscription), _wanted(request)
    config, named = _config(service, asked), _keys(asked.streams or [])
    subscribing.check(request.identity, config, named)
    note(
        subscription=route.subscription_id,
        type=config.kind,
        pattern=config.pattern,
        streams=len(named),
    )
    check_features(service)
    await service.node.keyring.ensure()
    owner = subscribing.owner_of(request.identity)
    command = PutSubscription(route.subscription_id, config, named, owner)
    outcome = await propose(service, command)
    match outcome.result:
        case Result.CREATED | Result.EXISTS:
            status = 201 if outcome.result is Result.CREATED else 200
            return await _shown(service, request, route.subscription_id, wanted, status)
        case Result.SUBSCRIPTION_EXISTS:
            return error_response(Problem.SUBSCRIPTION_ALREADY_EXISTS)
        case Result.OWNS_TOO_MANY:
            return error_response(
                Problem.TOO_MANY_SUBSCRIPTIONS,
                f"{owner} has made as many subscriptions as its limits allow",
            )
        case _:
            return _refused(outcome)


async def show(service: Service, request: Request, route: SubscriptionRoute) -> Response:
    """GET of a subscription, with a page of its streams."""
    wanted = _wanted(request)
    await service.catch_up()
    return await _shown(service, request, route.subscription_id, wanted, 200)


async def delete(service: Service, request: Request, route: SubscriptionRoute) -> Response:
    """DELETE of a subscription."""
    note(subscription=route.subscription_id)
    await service.catch_up()
    found = find(service, request, route.subscription_id)
    command = DeleteSubscription(route.subscription_id, found.number)
    outcome = await propose(service, command)
    return Response(204) if outcome.result is Result.DELETED else _refused(outcome)


async def list_all(service: Service, request: Request, route: SubscriptionsRoute) -> Response:
    """GET of the subscriptions that the sender may use."""
    given = parse_query(request.query)
    after = whole_number(given.get(b"after", b"0"), "after", MAX_SAFE_INTEGER)
    limit = limit_of(given, MAX_LISTED)
    await service.catch_up()
    records = service.node.group.state.subscriptions.records
    numbers = list(records)
    numbers = numbers[bisect_right(numbers, after) :]
    shown: list[EntryBody] = []
    last = looked_at = 0
    for number in numbers:
        if looked_at >= _MAX_LOOKED_AT:
            break
        last = number
        # Each stream that it names is looked at, too.
        looked_at += 1 + len(service.node.group.state.subscriptions.named_by(number))
        if _may_use(service, request, records[last]):
            shown.append(views.entry(service, request, records[last]))
            if len(shown) == limit:
                break
    has_more = bool(numbers) and last < numbers[-1]
    return json_response(
        SubscriptionsBody(
            shown, str(last) if has_more else None, has_more, *_used(service, request)
        )
    )


def _used(service: Service, request: Request) -> tuple[int, int | None]:
    """How many subscriptions the sender has made, and may have made."""
    owner, state = subscribing.owner_of(request.identity), service.node.group.state
    limits = state.limits.of_identity(owner) if owner else None
    most = None if limits is None else limits.max_subscriptions
    return state.subscriptions.owned_by(owner), most


async def link(service: Service, request: Request, route: LinksRoute) -> Response:
    """POST of streams that a subscription names from now on."""
    named = _keys(decoded(request.body, MoreStreams).streams)
    note(subscription=route.subscription_id, streams=len(named))
    await service.catch_up()
    found = find(service, request, route.subscription_id)
    _check_not_own(found.config, named)
    subscribing.check_named(request.identity, named)
    command = LinkStreams(route.subscription_id, named, found.number)
    outcome = await propose(service, command)
    return Response(204) if outcome.result is Result.DONE else _refused(outcome)


async def unlink(service: Service, request: Request, route: LinkRoute) -> Response:
    """DELETE of a stream that a subscription names: its pattern may still match it."""
    note(subscription=route.subscription_id)
    await service.catch_up()
    found = find(service, request, route.subscription_id)
    command = UnlinkStream(route.subscription_id, route.key, found.number)
    outcome = await propose(service, command)
    return Response(204) if outcome.result is Result.DONE else _refused(outcome)


async def force_wake(service: Service, request: Request, route: ForcedWakeRoute) -> Response:
    """POST that wakes a subscription without an append, to see whether its worker comes."""
    note(subscription=route.subscription_id)
    await service.catch_up()
    found = find(service, request, route.subscription_id)
    command = WakeSubscription(route.subscription_id, found.number)
    outcome = await propose(service, command)
    if outcome.result is not Result.DONE or outcome.wake is None:
        return _refused(outcome)
    return json_response(ForcedWakeBody(outcome.wake.wake_id, outcome.wake.generation))


async def key_set(service: Service, request: Request, route: KeySetRoute) -> Response:
    """GET of the public keys by which webhooks are signed."""
    await service.catch_up()
    return Response(200, _KEY_SET_HEAD, service.node.keyring.jwks())


def find(service: Service, request: Request, subscription_id: str) -> Subscription:
    """The subscription with that id, as this node knows it. Raises `ProblemError` if there is none,
    or none that the sender may use: nobody learns which."""
    found = service.node.group.state.subscriptions.by_id(subscription_id)
    if found is None or not _may_use(service, request, found):
        raise Problem.SUBSCRIPTION_NOT_FOUND.error()
    return found


def _may_use(service: Service, request: Request, one: Subscription) -> bool:
    named = service.node.group.state.subscriptions.named_by(one.number)
    return subscribing.covers(request.identity, one.config, named)


async def propose(service: Service, command: Command) -> Outcome:
    """The outcome of a command, once this node knows what it led to."""
    outcome = await service.node.group.writes.propose(command)
    await service.catch_up()
    return outcome


def check_features(service: Service) -> None:
    """Raises `ProblemError` while a member may not understand subscriptions."""
    if not service.node.log_formats.may_use(SUBSCRIPTIONS_FORMAT):
        raise Problem.FEATURES_NOT_RAISED.error(
            "subscriptions need a higher feature level: once all members run this release, raise "
            "it by streamd cluster features --raise"
        )


def json_response(body: msgspec.Struct, status: int = 200) -> Response:
    """An answer in JSON that no cache keeps."""
    return Response(status, JSON_HEAD, _ENCODER.encode(body))


class _Wanted(NamedTuple):
    """Which streams an answer shows: so many of those whose keys come after one."""

    after: bytes
    limit: int


def _wanted(request: Request) -> _Wanted:
    """Raises `ProblemError`."""
    given = parse_query(request.query)
    after = text_of(given, b"after").decode()
    return _Wanted(key_of(after) if after else b"", limit_of(given, MAX_STREAMS))


async def _shown(
    service: Service, request: Request, subscription_id: str, wanted: _Wanted, status: int
) -> Response:
    number = find(service, request, subscription_id).number
    page = await service.node.subscriptions.page(number, *wanted)
    found = service.node.group.state.subscriptions.get(number)
    if page is None or found is None:  # It was deleted since.
        raise Problem.SUBSCRIPTION_NOT_FOUND.error()
    return json_response(views.whole(service, request, found, page), status)


def _refused(outcome: Outcome) -> Response:
    """The answer where the machine refuses what the handler could not know."""
    match outcome.result:
        case Result.SUBSCRIPTION_NOT_FOUND:
            return error_response(Problem.SUBSCRIPTION_NOT_FOUND)
        case Result.TOO_MANY_LINKS:
            return error_response(
                Problem.TOO_MANY_SUBSCRIPTIONS,
                f"a subscription names at most {MAX_NAMED} streams, and there are limits for all "
                "subscriptions together",
            )
        case Result.TOO_MANY_SUBSCRIPTIONS:
            return error_response(Problem.TOO_MANY_SUBSCRIPTIONS)
        case _:
            raise AssertionError(outcome)


def _config(service: Service, asked: NewSubscription) -> SubscriptionConfig:
    """What a body asks for, in its one form. Raises `ProblemError`."""
    pattern = globs.normalised(asked.pattern or "")
    if pattern and (fault := globs.fault(pattern)):
        raise Problem.INVALID_REQUEST.error(f"pattern: {fault}")
    if not pattern and not asked.streams:
        raise Problem.INVALID_REQUEST.error("pattern or streams is needed")
    url, wake_key = "", b""
    if asked.type == "webhook":
        if asked.webhook is None:
            raise Problem.INVALID_REQUEST.error("webhook.url is needed for a webhook")
        url = asked.webhook.url
        _check_url(service, url)
    else:
        if not asked.wake_stream:
            raise Problem.INVALID_REQUEST.error("wake_stream is needed for pull-wake")
        wake_key = _key("wake_stream", asked.wake_stream)
    config = SubscriptionConfig(
        asked.type, pattern, url, wake_key, asked.lease_ttl_ms, asked.description
    )
    _check_not_own(config, _keys(asked.streams or []))
    return config


def _check_url(service: Service, url: str) -> None:
    config = service.subscriptions
    networks = [parse_network(one) for one in config.allowed_networks]
    try:
        parse_webhook_url(url, allow_local_http=config.allow_local_http, allowed_networks=networks)
    except WebhookUrlRejected as error:
        raise Problem.WEBHOOK_URL_REJECTED.error(f"webhook.url: {error}") from None


def _check_not_own(config: SubscriptionConfig, named: list[bytes]) -> None:
    """A wake would be an event in the wake stream, which would be pending, and so wake again."""
    if config.wake_key in named:
        raise Problem.INVALID_REQUEST.error("streams: the wake stream cannot be one of them")


def _keys(given: list[str]) -> list[bytes]:
    return list(dict.fromkeys(_key("streams", path) for path in given))


def _key(field: str, path: str) -> bytes:
    """The key of a stream that a body names. Raises `ProblemError`."""
    if (fault := path_fault(normalised(path))) is not None:
        raise Problem.INVALID_REQUEST.error(f"{field}: {fault}")
    return key_of(path)
