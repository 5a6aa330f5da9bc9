"""A path has one meaning: it is split at its slashes, and then its parts are decoded."""

from __future__ import annotations

from urllib.parse import quote, unquote

from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamd.client.names import BadName, parse_name
from streamd.http.protocol.raw_paths import NO_SUCH_ROUTE, BadPath
from streamd.http.protocol.reserved_paths import (
    ClaimRoute,
    KeySetRoute,
    LinkRoute,
    LinksRoute,
    SubscriptionRoute,
    SubscriptionsRoute,
)
from streamd.http.protocol.routing import StreamRoute, resolve
from streamd.protocol.problems import Problem

ESCAPES = settings(derandomize=True, database=None, deadline=None, max_examples=300)
# Text that is worth escaping: slashes, dots, percent signs, and what looks like escapes of them.
PIECES = st.sampled_from(["a", "b", "/", "%2F", "%2f", "%252F", "%25", ".", "..", "%2E", "é"])
PATHS = st.lists(PIECES, min_size=1, max_size=6).map("".join)


def named(path: str) -> list[str] | None:
    """The parts that a path names: split first, then decoded. None if it names nothing."""
    parts = [unquote(part) for part in path.split("/")]
    return None if "" in parts or ".." in parts or "/" in "".join(parts) else parts


@ESCAPES
@given(PATHS, PATHS)
@example("privat%2Fdoc", "privat/doc")
@example("a/b%2fc", "a/b/c")
@example("a%252Fb", "a%2Fb")
def test_two_paths_name_one_stream_if_their_decoded_parts_are_the_same(one: str, two: str) -> None:
    routes = [resolve(b"/v1/stream/" + quote(path, safe="/%").encode()) for path in (one, two)]
    for path, route in zip((one, two), routes, strict=True):
        assert isinstance(route, StreamRoute if named(path) else BadPath), (path, route)
    first, second = routes
    if isinstance(first, StreamRoute) and isinstance(second, StreamRoute):
        assert (first.key == second.key) == (named(one) == named(two))


@ESCAPES
@given(PATHS)
@example("privat%2Fdoc")
def test_the_client_requests_the_path_as_written(path: str) -> None:
    written = "/v1/stream/" + path
    here = resolve(quote(written, safe="/%").encode())
    try:
        there = resolve(parse_name(written).path.encode())
    except BadName:
        assert isinstance(here, BadPath)
    else:
        assert type(there) is type(here)
        assert getattr(there, "key", None) == getattr(here, "key", None)


def test_paths_of_subscriptions_are_not_those_of_streams() -> None:
    root = b"/v1/stream/__ds"
    one = "mail er"
    assert resolve(root + b"/subscriptions") == SubscriptionsRoute()
    assert resolve(root + b"/jwks.json") == KeySetRoute()
    assert resolve(b"/v1/stream/%5F%5Fds/subscriptions/mail%20er") == SubscriptionRoute(one)
    found = resolve(root + b"/subscriptions/mail%20er/claim")
    assert isinstance(found, ClaimRoute)
    assert found.subscription_id == one
    for path in (b"", b"/", b"/x", b"/subscriptions/a/x", b"/subscriptions/a/claim/x"):
        assert resolve(root + path) == NO_SUCH_ROUTE, path
    for path in (b"/subscriptions/", b"/subscriptions/a%2Fb", b"/subscriptions/" + b"a" * 257):
        found = resolve(root + path)
        assert isinstance(found, BadPath), path
        assert found.problem is Problem.INVALID_PATH
    assert isinstance(resolve(b"/__ds/subscriptions"), BadPath)
    # Only the first segment is reserved.
    assert isinstance(resolve(b"/v1/stream/a/__ds/subscriptions"), StreamRoute)


@ESCAPES
@given(PATHS)
@example("a%2Fb")
def test_a_stream_of_a_subscription_has_its_slashes_escaped_or_not(path: str) -> None:
    prefix = b"/v1/stream/__ds/subscriptions/s/streams/"
    raw = quote(path, safe="/%").encode()
    whole = unquote(path)
    found, escaped = resolve(prefix + raw), resolve(prefix + quote(whole, safe="").encode())
    assert escaped == found
    direct = resolve(b"/v1/stream/" + quote(whole.strip("/"), safe="/").encode())
    if isinstance(direct, StreamRoute):
        assert isinstance(found, LinkRoute)
        assert found.key == direct.key
    else:
        assert isinstance(found, (BadPath, LinksRoute))
