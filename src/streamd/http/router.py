"""What follows from the table of routes: which routes a path has, and what they have in common.

A path of an operation is found by its template. `protocol.routing` resolves all other paths, and
what a path names selects its routes. Nobody else decides what a path means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import msgspec

from streamd.http.access import needs
from streamd.http.access.needs import OPEN, Need, NeedsOf
from streamd.http.openapi import build, elements
from streamd.http.protocol.fields import Headers
from streamd.http.protocol.messages import Audience, Response
from streamd.http.protocol.raw_paths import BadPath
from streamd.http.protocol.refusals import error_response
from streamd.http.protocol.routing import RESERVED_STREAM, ListingRoute, Target, resolve
from streamd.http.routes import OPERATIONS, STREAMS, Path, Route
from streamd.process.diagnostics import FillLevel
from streamd.protocol.headers import ACCEPT_ENCODING, HEADERS
from streamd.protocol.problems import Problem

_ALL_METHODS = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
# Accept-Encoding is the browser's own business.
_ALLOWED_HEADERS = ", ".join(
    ("Authorization", *(one for one in HEADERS if one.request and one != ACCEPT_ENCODING))
).encode()
_PREFLIGHT = (
    b"Access-Control-Allow-Methods: %b\r\n"
    b"Access-Control-Allow-Headers: " + _ALLOWED_HEADERS + b"\r\n"
    b"Access-Control-Max-Age: 86400\r\n"
    b"Allow: %b\r\n"
)
_PARAMETER = re.compile(r"\{\w+\}")
# The label of what belongs to the console.
CONSOLE = "console"


class Resource:
    """The routes of a path, by their methods, and what they have in common.

    `needs` says what each method needs, and `otherwise` what those need that have no route. Web
    pages of other origins may not use a resource that `is_guarded`, nor read what `is_private`. An
    operation that `is_for_clients` is served with the streams, too, when operations have a listener
    of their own.
    """

    def __init__(self, label: str, routes: Iterable[Route] = (), *, is_operation: bool) -> None:
        self.label = label
        self.routes: Mapping[str, Route] = {route.method: route for route in routes}
        methods = [*self.routes, "OPTIONS"]
        self.allow = ", ".join(sorted(methods) if is_operation else methods).encode()
        declared = {method: route.needs for method, route in self.routes.items()}
        self.needs: Mapping[str, NeedsOf | None] = {**declared, "OPTIONS": OPEN}
        # Of what does not exist, too, so that strangers do not learn which operations do.
        self.otherwise = needs.admin if is_operation else OPEN
        self.is_operation = is_operation
        path = next((route.path for route in self.routes.values()), None)
        is_closed = is_operation and set(declared.values()) != {OPEN}
        self.is_guarded = is_closed or (path is not None and path.is_guarded)
        self.is_recorded = is_operation or (path is not None and path.is_recorded)
        self.is_console = label == CONSOLE
        self.is_private = self.is_guarded or self.is_console
        is_open = set(declared.values()) <= {OPEN, needs.known}
        self.is_for_clients = is_open and not self.is_console

    def scopes(self, method: str, target: Target | None, headers: Headers) -> Sequence[Need]:
        """What a request needs. Raises `ProblemError`."""
        needs_of = self.needs.get(method, self.otherwise)
        return () if needs_of is OPEN else needs_of(target, headers)

    def records(self, method: str) -> bool:
        """Whether the audit trail has requests with this method, if they change something. An
        operation that needs no scope, such as the signing of a URL, administers nothing."""
        if not self.is_operation:
            return self.is_recorded
        return self.needs.get(method, self.otherwise) not in (OPEN, needs.known)

    def audience(self, status: int) -> Audience:
        """Whom an answer with this status is for. Errors are never pages."""
        if not self.is_private:
            return Audience.ANYONE
        is_page = not self.is_guarded and status < 400
        return Audience.CONSOLE if is_page else Audience.OWN_PAGES

    def other(self, method: str, target: Target | None) -> Response:
        """The answer to a method that has no route."""
        if method == "OPTIONS":
            if self.is_private:
                return Response(204, b"Allow: %b\r\n" % self.allow)
            return self.preflight()
        if isinstance(target, ListingRoute) and method in ("POST", "PUT", "DELETE"):
            return RESERVED_STREAM.response()
        head = b"Allow: %b\r\n" % self.allow
        return error_response(Problem.METHOD_NOT_ALLOWED, f"{method} is not allowed here", head)

    def preflight(self) -> Response:
        return preflight(self.allow)


def preflight(allowed: bytes = _ALL_METHODS) -> Response:
    """The answer to a browser that asks which methods and headers are allowed."""
    return Response(204, _PREFLIGHT % (allowed, allowed))


class Found(NamedTuple):
    """The routes of a path, and what it names; operations have no target."""

    resource: Resource
    target: Target | None


def _by_path(routes: Iterable[Route]) -> dict[Path, list[Route]]:
    found: dict[Path, list[Route]] = {}
    for route in routes:
        found.setdefault(route.path, []).append(route)
    return found


def _kind(path: Path) -> type[Target]:
    """The kind of target that paths of this form have."""
    target = resolve(_PARAMETER.sub("some", path.template).encode())
    assert target is not None, path.template
    assert not isinstance(target, BadPath), path.template
    return type(target)


_NOWHERE = Resource("none", is_operation=False)
_UNKNOWN_OPERATION = Found(Resource("ops", is_operation=True), None)
_BY_PATH: Mapping[Path, Resource] = {
    path: Resource(path.label, routes, is_operation=table is OPERATIONS)
    for table in (STREAMS, OPERATIONS)
    for path, routes in _by_path(table).items()
}
RESOURCES: Mapping[type[Target], Resource] = {
    BadPath: _NOWHERE,
    **{_kind(path): found for path, found in _BY_PATH.items() if not found.is_operation},
}
_OPERATIONS = [
    (
        re.compile("[^/]+".join(map(re.escape, _PARAMETER.split(path.template))).encode()),
        Found(found, None),
    )
    for path, found in _BY_PATH.items()
    if found.is_operation
]
# First segments of the paths of operations; no bucket can have such a name.
OPERATION_ROOTS = frozenset(route.path.template.split("/")[1].encode() for route in OPERATIONS)


def find(path: bytes) -> Found:
    """The routes of a raw path. Short paths are remembered: most requests repeat one."""
    return _find_remembered(path) if len(path) <= 200 else _find(path)


@lru_cache(maxsize=65_536)
def _find_remembered(path: bytes) -> Found:
    return _find(path)


def remembered_paths() -> FillLevel:
    """How many paths are remembered."""
    _, _, limit, size = _find_remembered.cache_info()
    assert limit is not None
    return FillLevel(size, limit)


def _find(path: bytes) -> Found:
    if path[1:].partition(b"/")[0] in OPERATION_ROOTS or (target := resolve(path)) is None:
        return find_operation(path)
    return Found(RESOURCES[type(target)], target)


def find_operation(path: bytes) -> Found:
    """As `find`, where there is nothing but operations."""
    found = (found for pattern, found in _OPERATIONS if pattern.fullmatch(path))
    return next(found, _UNKNOWN_OPERATION)


def without_console(find: Callable[[bytes], Found], path: bytes) -> Found:
    """As `find` where the console is not served: it does not exist."""
    found = find(path)
    return _UNKNOWN_OPERATION if found.resource.is_console else found


def scopes_of(method: str, path: bytes) -> Sequence[Need] | None:
    """What a request with this raw path and no headers needs; None if it is for no stream or
    bucket, or they have no such method."""
    resource, target = find(path)
    if resource.is_operation or method not in resource.routes:
        return None
    return resource.scopes(method, target, {})


def describe() -> elements.Json:
    """The OpenAPI document."""
    return build(
        elements.Path(
            path.template,
            {method: route.doc for method, route in resource.routes.items()},
            tag=path.tag,
            errors=path.errors,
            id_suffix=path.id_suffix,
            private=resource.is_private,
            recorded=resource.is_recorded,
        )
        for path, resource in _BY_PATH.items()
    )


@cache
def document() -> bytes:
    """The OpenAPI document as JSON."""
    return msgspec.json.encode(describe())
