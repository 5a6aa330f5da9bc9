"""Paths below ``/v1/stream/__ds/``: of subscriptions, not of streams (protocol section 6)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from streamd.http.protocol.raw_paths import (
    ESCAPED_SLASH,
    NO_SUCH_ROUTE,
    BadPath,
    decode,
    has_escaped_slash,
)
from streamd.protocol.problems import Problem
from streamd.streams.subscriptions.checks import is_id
from streamd.streams.subscriptions.model import MAX_ID_CHARACTERS
from streamd.streams.subscriptions.paths import key_of, normalised

# Of the segment under which no stream can be, relative to the root of the streams.
RESERVED = b"__ds"
# An id and a stream's path, each of whose bytes may be escaped.
MAX_RESERVED_BYTES = 4096
# Of a stream's path, relative to the root of the streams.
MAX_STREAM_BYTES = 1024 - len("/v1/stream/")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


class KeySetRoute(NamedTuple):
    """The public keys by which webhooks are signed."""


class SubscriptionsRoute(NamedTuple):
    """All subscriptions."""


class SubscriptionRoute(NamedTuple):
    """A subscription, by its id."""

    subscription_id: str


class LinksRoute(NamedTuple):
    """The streams that a subscription names."""

    subscription_id: str


class LinkRoute(NamedTuple):
    """One of the streams that a subscription names, by its key."""

    subscription_id: str
    key: bytes


class CallbackRoute(NamedTuple):
    """Where a webhook's receiver acknowledges."""

    subscription_id: str


class ClaimRoute(NamedTuple):
    """Where a worker claims a subscription's wake."""

    subscription_id: str


class AckRoute(NamedTuple):
    """Where a worker acknowledges, or says that it lives."""

    subscription_id: str


class ReleaseRoute(NamedTuple):
    """Where a worker gives back what it has claimed."""

    subscription_id: str


class VerifyRoute(NamedTuple):
    """Where a write token's claim is verified."""

    subscription_id: str


class ForcedWakeRoute(NamedTuple):
    """Where a subscription is woken without an append; an extension of our own."""

    subscription_id: str


ReservedTarget = (
    KeySetRoute
    | SubscriptionsRoute
    | SubscriptionRoute
    | LinksRoute
    | LinkRoute
    | CallbackRoute
    | ClaimRoute
    | AckRoute
    | ReleaseRoute
    | VerifyRoute
    | ForcedWakeRoute
)

_BELOW: Mapping[bytes, Callable[[str], ReservedTarget]] = {
    b"streams": LinksRoute,
    b"callback": CallbackRoute,
    b"claim": ClaimRoute,
    b"claim/verify": VerifyRoute,
    b"ack": AckRoute,
    b"release": ReleaseRoute,
    b"test": ForcedWakeRoute,
}


def resolve_reserved(raw: bytes) -> ReservedTarget | BadPath:
    """What a raw path names, relative to the root of the streams, whose first segment is
    `RESERVED`."""
    if len(raw) > MAX_RESERVED_BYTES:
        return BadPath(Problem.INVALID_PATH, f"the path is longer than {MAX_RESERVED_BYTES} bytes")
    _, *segments = raw.split(b"/")
    match segments:
        case [b"jwks.json"]:
            return KeySetRoute()
        case [b"subscriptions"]:
            return SubscriptionsRoute()
        case [b"subscriptions", raw_id, *below]:
            found = _subscription_id(raw_id)
            return found if isinstance(found, BadPath) else _below(found, below)
    return NO_SUCH_ROUTE


def _below(subscription_id: str, segments: list[bytes]) -> ReservedTarget | BadPath:
    """What the segments after a subscription's id select."""
    if not segments:
        return SubscriptionRoute(subscription_id)
    if segments[0] == b"streams" and len(segments) > 1:
        return _link(subscription_id, b"/".join(segments[1:]))
    kind = _BELOW.get(b"/".join(segments))
    return NO_SUCH_ROUTE if kind is None else kind(subscription_id)


def _subscription_id(raw: bytes) -> str | BadPath:
    if has_escaped_slash(raw):
        return ESCAPED_SLASH
    found = decode(raw)
    if isinstance(found, BadPath):
        return found
    text = found.decode()
    if not is_id(text):
        return BadPath(
            Problem.INVALID_PATH,
            f"a subscription's id has 1 to {MAX_ID_CHARACTERS} printable characters",
        )
    return text


def _link(subscription_id: str, raw: bytes) -> LinkRoute | BadPath:
    """The slashes of a stream's path may be escaped, or not (protocol section 6.4): nothing follows
    the path for which they could be taken."""
    found = decode(raw)
    if isinstance(found, BadPath):
        return found
    path = normalised(found.decode())
    if (fault := path_fault(path)) is not None:
        return BadPath(Problem.INVALID_PATH, fault)
    return LinkRoute(subscription_id, key_of(path))


def path_fault(path: str) -> str | None:
    """Why no stream can have a path, relative to the root of the streams and decoded; None if one
    can."""
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        return f"the path {path!r} is not valid Unicode"
    segments = raw.split(b"/")
    if not all(segments) or b".." in segments:
        return f"the path {path!r} has an empty segment, or one of two dots"
    if _CONTROL.search(path):
        return f"the path {path!r} has a control character or a backslash"
    if segments[0] == RESERVED:
        return f"the path {path!r} is reserved for subscriptions"
    if len(raw) > MAX_STREAM_BYTES:
        return f"a stream's path has at most {MAX_STREAM_BYTES} bytes"
    return None
