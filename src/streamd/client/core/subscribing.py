"""Requests about subscriptions, as flows (protocol section 6)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import msgspec

from streamd.client.core.retrying import Backoff, Session, ask
from streamd.client.core.steps import Answer, Emit, Flow, Request
from streamd.client.errors import NotFound
from streamd.client.names import V1, BadName, parse_name
from streamd.client.subscription_values import SubscribedStream, SubscriptionInfo
from streamd.protocol.headers import CONTENT_TYPE
from streamd.streams.content import JSON

SUBSCRIPTIONS = f"{V1}__ds/subscriptions"
JWKS_PATH = f"{V1}__ds/jwks.json"
_PAGE = 1000
_JSON_HEADERS: dict[str, str] = {CONTENT_TYPE: JSON}


def subscription_path(subscription_id: str) -> str:
    """The path of a subscription. Raises `BadName`."""
    if not subscription_id or "/" in subscription_id or subscription_id in (".", ".."):
        raise BadName(f"'{subscription_id}' is not the name of a subscription")
    return f"{SUBSCRIPTIONS}/{quote(subscription_id, safe='')}"


def stream_path(name: str) -> str:
    """A stream's name as subscriptions have it: below the root of all streams. Raises `BadName`."""
    found = parse_name(name)
    if not name.startswith("/"):
        return name
    below = found.path.removeprefix(V1)
    return name.removeprefix(V1) if below != found.path else name[1:]


def with_json(method: str, path: str, body: object) -> Request:
    """A request with a body of JSON."""
    return Request(method, path, None, _JSON_HEADERS, msgspec.json.encode(body))


def settings(
    webhook: str | None,
    wake_stream: str | None,
    pattern: str | None,
    streams: Iterable[str],
    lease_ttl_s: float | None,
    description: str | None,
) -> dict[str, Any]:
    """The body that creates a subscription, without what is not given. Raises `ValueError`."""
    if (webhook is None) == (wake_stream is None):
        raise ValueError("a subscription has a webhook (a URL) or a wake stream, and not both")
    paths = [stream_path(name) for name in streams]
    if pattern is None and not paths:
        raise ValueError("a subscription has a pattern, or streams, or both")
    body: dict[str, Any] = {"type": "pull-wake" if webhook is None else "webhook"}
    if webhook is not None:
        body["webhook"] = {"url": webhook}
    if wake_stream is not None:
        body["wake_stream"] = stream_path(wake_stream)
    if pattern is not None:
        body["pattern"] = pattern
    if paths:
        body["streams"] = paths
    if lease_ttl_s is not None:
        body["lease_ttl_ms"] = round(lease_ttl_s * 1000)
    if description is not None:
        body["description"] = description
    return body


def create(session: Session, path: str, body: dict[str, Any]) -> Flow[SubscriptionInfo]:
    """Create a subscription, or confirm that it exists with these settings."""
    answer = yield from ask(session, with_json("PUT", path, body))
    return msgspec.structs.replace(answer.decoded(SubscriptionInfo), is_new=answer.status == 201)


def info(session: Session, path: str) -> Flow[SubscriptionInfo]:
    """What a subscription is."""
    answer = yield from ask(session, Request("GET", path))
    return answer.decoded(SubscriptionInfo)


def delete(session: Session, path: str) -> Flow[None]:
    """Delete a subscription."""
    backoff = Backoff(session)
    try:
        yield from ask(session, Request("DELETE", path), backoff=backoff)
    except NotFound:
        # An earlier try without an answer may have deleted it.
        if not backoff.is_doubtful:
            raise


def link(session: Session, path: str, names: Iterable[str]) -> Flow[None]:
    """Name streams explicitly."""
    body = {"streams": [stream_path(name) for name in names]}
    yield from ask(session, with_json("POST", f"{path}/streams", body))


def unlink(session: Session, path: str, name: str) -> Flow[None]:
    """Take the explicit name of a stream back."""
    below = quote(stream_path(name), safe="")
    yield from ask(session, Request("DELETE", f"{path}/streams/{below}"))


def test(session: Session, path: str) -> Flow[None]:
    """Wake a subscription. A repetition finds the wake that it has."""
    yield from ask(session, with_json("POST", f"{path}/test", {}))


class _SubscriptionsPage(msgspec.Struct):
    has_more: bool = False
    next_cursor: str | None = None


class _Listed(_SubscriptionsPage, kw_only=True):
    subscriptions: list[SubscriptionInfo]


class _Linked(_SubscriptionsPage, kw_only=True):
    streams: list[SubscribedStream]


def listing(session: Session, after: str | None) -> Flow[None]:
    """Emit all subscriptions in the order of their ids."""
    params = {"limit": str(_PAGE)}
    while True:
        page = (yield from _page(session, SUBSCRIPTIONS, params, after)).decoded(_Listed)
        for one in page.subscriptions:
            yield Emit(one)
        after = page.next_cursor
        if not page.has_more or after is None:
            return


def streams(session: Session, path: str) -> Flow[None]:
    """Emit the streams of a subscription."""
    after: str | None = None
    while True:
        page = (yield from _page(session, path, {}, after)).decoded(_Linked)
        for one in page.streams:
            yield Emit(one)
        after = page.next_cursor
        if not page.has_more or after is None:
            return


def _page(session: Session, path: str, params: dict[str, str], after: str | None) -> Flow[Answer]:
    if after is not None:
        params["after"] = after
    return (yield from ask(session, Request("GET", path, params or None)))
