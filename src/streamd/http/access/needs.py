"""What a request needs to be allowed to do: scopes, by what its path names and its headers.

The table of routes (`http.routes`) says which of these functions each route has. A need names a
verb and a target (`auth.scopes`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from streamd.auth.scopes import Verb
from streamd.http.protocol import fields
from streamd.http.protocol.fields import Headers
from streamd.http.protocol.routing import BatchRoute, StreamRoute


class Need(NamedTuple):
    """A scope with this verb must match this target."""

    verb: Verb
    target: bytes


# Takes what the path names and the request's headers. May raise `ProblemError`.
NeedsOf = Callable[[Any, Headers], tuple[Need, ...]]
# In place of a `NeedsOf`: anyone may ask.
OPEN = None

# The whole server as a target. No pattern but ``*`` matches it: bucket names are not empty.
SERVER = b"\0"


def _one(verb: Verb, target: Callable[[Any], bytes]) -> NeedsOf:
    """One verb on the target of a route."""
    return lambda route, _: (Need(verb, target(route)),)


_stream = attrgetter("key")
_stream_above = attrgetter("stream.key")

read = _one("read", _stream)
delete = _one("delete", _stream)
read_below = _one("read", _stream_above)
snapshot = _one("snapshot", _stream_above)
look_at_bucket = _one("list", lambda route: route.name + b"\0")
administer_bucket = _one("admin", lambda route: route.name + b"\0")
list_bucket = _one("list", lambda route: route.bucket + b"\0")


def append(route: StreamRoute, headers: Headers) -> tuple[Need, ...]:
    """A close needs `append` even without a body: whether there is one is not certain before it is
    received."""
    return _append(route.key, headers)


def append_batch(route: BatchRoute, headers: Headers) -> tuple[Need, ...]:
    """As `append`."""
    return _append(route.stream.key, headers)


def _append(key: bytes, headers: Headers) -> tuple[Need, ...]:
    if fields.wants_close(headers):
        return Need("append", key), Need("close", key)
    return (Need("append", key),)


def create(route: StreamRoute, headers: Headers) -> tuple[Need, ...]:
    """A fork keeps its source's records even when the source is deleted: hence `fork`, which a
    reader does not have."""
    source = fields.fork_source(headers)
    if source is None:
        return (Need("create", route.key),)
    return Need("create", route.key), Need("read", source), Need("fork", source)


def known(route: object, headers: Headers) -> tuple[Need, ...]:
    """A valid credential, whatever it permits. The handler may judge more."""
    return ()


def admin(route: object, headers: Headers) -> tuple[Need, ...]:
    """The administration of the whole server."""
    return (Need("admin", SERVER),)


def operate(target: str) -> NeedsOf:
    """An operation that a token may permit alone."""
    needed = (Need("operate", target.encode()),)
    return lambda *_: needed
