"""What a request needs to be allowed to do: scopes, for each method of each route.

Every handler of a route has an entry; a server with one that has not does not start (`undeclared`).
A need names a verb and a target (`auth.scopes`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from streamd.auth.scopes import Verb
from streamd.http.protocol import fields
from streamd.http.protocol.fields import Headers
from streamd.http.protocol.routing import BatchRoute, BucketsRoute, StreamRoute


class Need(NamedTuple):
    """A scope with this verb must match this target."""

    verb: Verb
    target: bytes


# Takes a route and the request's headers. May raise `BadRequest`.
NeedsOf = Callable[[Any, Headers], tuple[Need, ...]]

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


def list_buckets(route: BucketsRoute, headers: Headers) -> tuple[Need, ...]:
    """A valid credential: the handler shows the buckets that its sender may list."""
    return ()


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


# -- operations ------------------------------------------------------------------------------------

# Anyone may ask.
_PUBLIC = None
# Anyone may ask who has a valid credential.
_KNOWN: tuple[Need, ...] = ()
_ADMIN = (Need("admin", SERVER),)


def _operate(path: str) -> tuple[Need, ...]:
    return (Need("operate", path[1:].encode()),)


# By the rule and the method in the operations app; HEAD needs what GET needs.
OPERATIONS: Mapping[tuple[str, str], tuple[Need, ...] | None] = {
    ("/healthz", "GET"): _PUBLIC,
    ("/readyz/local", "GET"): _PUBLIC,
    ("/readyz/cluster", "GET"): _PUBLIC,
    ("/openapi.json", "GET"): _PUBLIC,
    **{
        (path, "GET"): _operate(path)
        for path in (
            "/metrics",
            "/cluster/status",
            "/cluster/cold",
            "/cluster/debug/tasks",
            "/cluster/debug/memory",
            "/cluster/debug/profile",
        )
    },
    **{
        (path, "POST"): _operate(path)
        for path in (
            "/cluster/snapshot",
            "/cluster/cold/flush",
            "/cluster/cold/gc",
            "/cluster/cold/scrub",
            "/cluster/add",
            "/cluster/promote",
            "/cluster/remove",
            "/cluster/transfer",
        )
    },
    ("/cluster/limits", "GET"): _operate("/cluster/limits"),
    **{
        (f"/cluster/limits/{kinds}/<name>", method): _operate(f"/cluster/limits/{kinds}")
        for kinds in ("buckets", "identities")
        for method in ("GET", "PUT", "DELETE")
    },
    # A backup has all streams and the hashes of all tokens.
    ("/cluster/backup", "POST"): _ADMIN,
    ("/cluster/backup/<backup>", "DELETE"): _ADMIN,
    ("/cluster/backup/<backup>/<number>", "GET"): _ADMIN,
    ("/auth/tokens", "GET"): _ADMIN,
    ("/auth/tokens", "POST"): _ADMIN,
    ("/auth/tokens/<token>", "GET"): _ADMIN,
    ("/auth/tokens/<token>", "DELETE"): _ADMIN,
    ("/auth/tokens/<token>/rotate", "POST"): _ADMIN,
    # The handler compares the token's scopes with what it is to sign.
    ("/auth/sign", "POST"): _KNOWN,
}
# Served with the streams, too, when operations have a listener of their own: those for clients.
_FOR_CLIENTS = frozenset(
    (b"/healthz", b"/readyz/local", b"/readyz/cluster", b"/openapi.json", b"/auth/sign")
)
_PATHS = [
    (re.compile(re.sub("<[a-z]+>", "[^/]+", re.escape(rule)).encode()), method, needs)
    for (rule, method), needs in OPERATIONS.items()
]


def is_operation(path: bytes) -> bool:
    """Whether there is an operation at a path."""
    return any(pattern.fullmatch(path) for pattern, _, _ in _PATHS)


def takes_post(path: bytes) -> bool:
    """Whether there is a POST among the operations at a path."""
    return any(method == "POST" and pattern.fullmatch(path) for pattern, method, _ in _PATHS)


def is_for_clients(path: bytes) -> bool:
    """Whether there is an operation at a path that stays with the streams."""
    return path in _FOR_CLIENTS


def operation(method: str, path: bytes) -> tuple[Need, ...] | None:
    """What an operation needs, None if its sender need not be known. One that does not exist needs
    all, so that strangers do not learn which ones do."""
    if method == "OPTIONS":
        return _PUBLIC
    method = "GET" if method == "HEAD" else method
    for pattern, of_method, needs in _PATHS:
        if method == of_method and pattern.fullmatch(path):
            return needs
    return _ADMIN


class UndeclaredScope(Exception):
    """A route has a method for which no scope is declared: a bug, and the server must not start."""


def check_declared(handled: Iterable[tuple[str, str]], declared: Iterable[tuple[str, str]]) -> None:
    """Check that the same methods of the same routes are handled and declared.

    Raises `UndeclaredScope`.
    """
    differing = set(handled) ^ set(declared)
    if differing:
        route, method = min(differing)
        raise UndeclaredScope(f"{method} of {route} has no scope, or its scope has no handler")


def handled_operations(rules: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The rules and methods of the operations app, as in `OPERATIONS`."""
    for rule in rules:
        for method in rule.methods - {"HEAD", "OPTIONS"}:
            yield rule.rule, method
