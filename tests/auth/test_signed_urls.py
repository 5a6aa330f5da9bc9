"""Signed URLs: their one form, what is signed, and what a signature permits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from streamd.auth import signed_urls, tokens
from streamd.auth.signed_urls import METHODS, Grant
from streamd.http.protocol.raw_paths import BadPath
from streamd.http.protocol.routing import StreamRoute, Target, resolve

TOKEN = tokens.mint(7, b"secr" * 5).encode()
OTHER = tokens.mint(7, b"diff" * 5).encode()
GRANT = Grant(7, 1_800_000_000, ("GET",), b"host:4437", b"/agents/run-1", False)

methods = st.sets(st.sampled_from(METHODS), min_size=1).map(
    lambda given: signed_urls.methods_in_order(given) or ()
)
hosts = st.sampled_from(
    [b"a", b"a:1", b"a.example", b"a.example:8080", b"10.0.0.1:4437", b"[::1]", b"[::1]:80"]
).map(lambda host: signed_urls.same_host(host) or b"")
segments = st.sampled_from([b"a", b"ab", b"b", b"streams", b"v1", b"\xc3\xa9", b".", b"x\ny"])
paths = st.lists(segments, min_size=1, max_size=4).map(lambda parts: b"/" + b"/".join(parts))
ids = st.integers(0, tokens.MAX_TOKEN_ID)
grants = st.builds(Grant, ids, st.integers(1, 10**11 - 1), methods, hosts, paths, st.booleans())
# What differs in one field only is what an attacker would try.
near = st.one_of(
    st.builds(lambda g, v: (g, g._replace(token_id=v)), grants, ids),
    st.builds(lambda g, v: (g, g._replace(expires_s=v)), grants, st.integers(1, 10**11 - 1)),
    st.builds(lambda g, v: (g, g._replace(methods=v)), grants, methods),
    st.builds(lambda g, v: (g, g._replace(host=v)), grants, hosts),
    st.builds(lambda g, v: (g, g._replace(path=v)), grants, paths),
    st.builds(lambda g: (g, g._replace(is_prefix=not g.is_prefix)), grants),
    st.tuples(grants, grants),
)


@given(near)
def test_different_grants_are_never_signed_by_equal_bytes(pair: tuple[Grant, Grant]) -> None:
    one, other = pair
    are_equal = signed_urls.signed_bytes(one) == signed_urls.signed_bytes(other)
    assert are_equal == (one == other)


@given(grants)
def test_a_value_is_parsed_to_what_was_signed(grant: Grant) -> None:
    value = signed_urls.sign(TOKEN, grant).encode()
    assert quote(value, safe="") == value.decode(), "no character needs an escape"
    found = signed_urls.parse(value)
    assert found is not None
    assert found[:3] == grant[:3]
    assert found.grant(grant.host, grant.path) == grant
    assert signed_urls.is_signed(signed_urls.public_key_of(TOKEN), grant, found.signature)


@given(near)
def test_a_signature_is_good_for_nothing_else(pair: tuple[Grant, Grant]) -> None:
    one, other = pair
    assume(one != other)
    found = signed_urls.parse(signed_urls.sign(TOKEN, one).encode())
    assert found is not None
    assert not signed_urls.is_signed(signed_urls.public_key_of(TOKEN), other, found.signature)


def test_a_signature_is_good_for_no_other_secret_of_its_token() -> None:
    found = signed_urls.parse(signed_urls.sign(TOKEN, GRANT).encode())
    assert found is not None
    for key in (signed_urls.public_key_of(OTHER), b"", b"\0" * 32, b"\xff" * 32, b"x" * 31):
        assert not signed_urls.is_signed(key, GRANT, found.signature)


@given(st.data())
def test_a_value_with_another_byte_is_refused_or_does_not_verify(data: st.DataObject) -> None:
    """Nor does it reach the same grant by another spelling."""
    value = bytearray(signed_urls.sign(TOKEN, GRANT).encode())
    at = data.draw(st.integers(0, len(value) - 1))
    byte = data.draw(st.integers(0, 255))
    assume(value[at] != byte)
    value[at] = byte
    found = signed_urls.parse(bytes(value))
    grant = None if found is None else found.grant(GRANT.host, GRANT.path)
    assert (
        found is None
        or grant is None
        or not signed_urls.is_signed(signed_urls.public_key_of(TOKEN), grant, found.signature)
    )


VALUE = signed_urls.sign(TOKEN, GRANT)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@example(b"")
@example(b"." * 5)
@example(VALUE.replace("GET", "get").encode())
@example(VALUE.replace("GET", "GET-GET").encode())
@example(VALUE.replace("GET", "PUT-GET").encode())
@example(VALUE.replace("GET", "GET-").encode())
@example(VALUE.replace("GET", "PATCH").encode())
@example(VALUE.replace(".x.", ".0.").encode())
@example(VALUE.replace(".x.", ".05.").encode())
@example(VALUE.replace(".1800", ".01800").encode())
@example(VALUE.replace("1.", "2.", 1).encode())
@example(VALUE.encode() + b"\n")
@example(VALUE.encode() + b"=")
@example((VALUE + "&" + VALUE).encode())
def test_other_bytes_are_no_value(raw: bytes) -> None:
    assert signed_urls.parse(raw) is None


@given(st.from_regex(signed_urls._VALUE, fullmatch=True))
def test_a_value_has_one_spelling(raw: bytes) -> None:
    """The last character of a signature has four bits to spare, and zeros only are accepted."""
    found = signed_urls.parse(raw)
    if found is not None:
        fields = raw.split(b".")
        assert len(found.signature) == 64
        assert signed_urls._encoded(found.signature) == fields[5]
        assert "-".join(found.methods).encode() == fields[3]


def test_the_page_of_formats_has_what_is_signed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    token = b"sd_17d3a90c5b1e2f84_aaaqeayeaudaocajbifqydiob4ibceqt"
    host, path = signed_urls.host_and_path("http://localhost:4437/agents/run%2D1")
    grant = Grant(0x17D3A90C5B1E2F84, 1_800_000_000, ("GET", "POST"), host, path, True)
    for said in (
        token.decode(),
        signed_urls.public_key_of(token).hex(),
        signed_urls.signed_bytes(grant).decode(),
        signed_urls.sign(token, grant),
    ):
        assert said in page


# -- reach -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "path", "is_below"),
    [
        (b"/agents/run-1", b"/agents/run-1", True),
        (b"/agents/run-1", b"/agents/run-1/bootstrap", True),
        (b"/agents/run-1", b"/agents/run-10", False),
        (b"/agents/run-1", b"/agents/run-", False),
        (b"/agents/run-1", b"/agents", False),
        (b"/agents/", b"/agents/run-1", True),
        (b"/agents/", b"/agents/", True),
        (b"/agents/", b"/agents", False),
        (b"/agents/", b"/agents-2/run", False),
        (b"/agents", b"/agents/run-1", True),
        (b"/", b"/agents/run-1", True),
    ],
)
def test_a_prefix_permits_itself_and_whole_segments_below(
    prefix: bytes, path: bytes, is_below: bool
) -> None:
    signed = signed_urls.parse(
        signed_urls.sign(TOKEN, GRANT._replace(path=prefix, is_prefix=True)).encode()
    )
    assert signed is not None
    grant = signed.grant(GRANT.host, path)
    key = signed_urls.public_key_of(TOKEN)
    assert is_below == (grant is not None and signed_urls.is_signed(key, grant, signed.signature))


@given(grants, paths)
def test_a_request_is_permitted_only_where_the_grant_covers_it(grant: Grant, path: bytes) -> None:
    value = signed_urls.parse(signed_urls.sign(TOKEN, grant).encode())
    assert value is not None
    found = value.grant(grant.host, path)
    is_permitted = found == grant
    assert is_permitted == signed_urls.covers(grant, path)


@pytest.mark.parametrize(
    ("signed", "permitted"),
    [
        (("GET",), {"GET", "HEAD"}),
        (("HEAD",), {"HEAD"}),
        (("POST",), {"POST"}),
        (("GET", "PUT"), {"GET", "HEAD", "PUT"}),
    ],
)
def test_get_permits_head_and_nothing_else_is_implied(
    signed: tuple[str, ...], permitted: set[str]
) -> None:
    value = signed_urls.parse(signed_urls.sign(TOKEN, GRANT._replace(methods=signed)).encode())
    assert value is not None
    asked = (*METHODS, "OPTIONS", "PATCH", "get")
    assert {method for method in asked if value.permits(method)} == permitted


@pytest.mark.parametrize("given", [[], ["PATCH"], ["GET", "get"], ["OPTIONS"]])
def test_other_methods_cannot_be_signed(given: list[str]) -> None:
    assert signed_urls.methods_in_order(given) is None


# -- hosts and paths -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "same"),
    [
        (b"Streams.Example.NET", b"streams.example.net"),
        (b"a:80", b"a"),
        (b"a:443", b"a"),
        (b"a:", b"a"),
        (b"a:4437", b"a:4437"),
        (b"a:8080", b"a:8080"),
        (b"[::1]:443", b"[::1]"),
        (b"[::443]", b"[::443]"),
        (b"", None),
        (b"a b", None),
        (b"a\nb", None),
        (b"a:0", None),
        (b"a:port", None),
        (b"user@a", None),
        (b"a/b", None),
        ("é".encode(), None),
        (b"a" * 254, b"a" * 254),
        (b"a" * 255, None),
    ],
)
def test_a_host_is_signed_as_clients_send_it(host: bytes, same: bytes | None) -> None:
    assert signed_urls.same_host(host) == same


RAW = [
    b"/agents/run-1",
    b"/agents/run%2D1",
    b"/%61gents/run-1",
    b"/agents/run-1/",
    b"/agents//run-1",
    b"//agents/run-1",
    b"/agents/run-1/bootstrap",
    b"/agents/run-1/%62ootstrap",
    b"/agents/run-1/snapshot/0_0",
    b"/agents/%73treams",
    b"/v1/stream/agents/run-1",
    b"/v1/stream/agents/run%2d1",
    b"/v1/stre%61m/agents/run-1",
    b"/%76%31/stream/agents/run-1",
    b"/v1/stream/agents/./run-1",
    b"/v1/stream/agents/%2E/run-1",
    b"/v1/stream/agents/%252E%252E/run-1",
    b"/v1/stream/alone",
    b"/v1/stream/%C3%A9",
    b"/v1/stream/\xc3\xa9",
    b"/auth/tokens",
    b"/%61uth/tokens",
]
raw_paths = st.sampled_from(RAW) | st.lists(
    st.sampled_from([b"/", b"a", b"v1/", b"stream/", b"%61", b"%2E", b".", b"%25", b"4", b"%34",
                     b"snapshot", b"%2F", b"%", b"auth", b"streams", b"\\", b"%0A", b"%5C"]),
    max_size=8,
).map(lambda parts: b"/" + b"".join(parts))  # fmt: skip


def resource(route: Target | None) -> object:
    """What a route names, however it was addressed."""
    if isinstance(route, StreamRoute):
        return route.key
    return type(route), tuple(
        one.key if isinstance(one, StreamRoute) else one for one in route or ()
    )


@given(raw_paths, raw_paths)
def test_escapes_are_no_way_from_one_resource_to_another(one: bytes, other: bytes) -> None:
    """Two paths that are signed alike name the same resource, or one of them names nothing that a
    signed URL reaches."""
    path = signed_urls.decoded_path(one)
    if path is None or path != signed_urls.decoded_path(other):
        return
    routes = resolve(one), resolve(other)
    if not any(route is None or isinstance(route, BadPath) for route in routes):
        assert resource(routes[0]) == resource(routes[1])


@given(raw_paths)
def test_every_path_of_a_stream_or_bucket_can_be_signed(raw: bytes) -> None:
    if not isinstance(resolve(raw), BadPath | None):
        assert signed_urls.decoded_path(raw) is not None


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"agents", b"/a/../b", b"/a/%2e%2E/b", b"/a/..", b"/a%2Fb", b"/a%2fb", b"/a%", b"/a%2",
        b"/a%zz", b"/a\\b", b"/a%5Cb", b"/a%00", b"/a\nb", b"/a%0Ab", b"/a%7F",
    ],
)  # fmt: skip
def test_a_path_with_two_meanings_cannot_be_signed(raw: bytes) -> None:
    assert signed_urls.decoded_path(raw) is None


@pytest.mark.parametrize(
    ("query", "value"),
    [
        (b"", None),
        (b"offset=-1", None),
        (b"signed=x", b"x"),
        (b"offset=-1&signed=x&live=sse", b"x"),
        (b"signed=", b""),
        (b"signed", None),
        (b"unsigned=x", None),
        (b"%73igned=x", None),
        (b"signed=x&signed=y", b"x&y"),
        (b"a=signed=x", None),
    ],
)
def test_the_parameter_is_found_by_its_plain_name_once(query: bytes, value: bytes | None) -> None:
    assert signed_urls.value_in(query) == value


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://h/agents/run-1", (b"h", b"/agents/run-1")),
        ("https://H:443/agents/run%2D1?offset=-1", (b"h", b"/agents/run-1")),
        ("http://[::1]:4437/a", (b"[::1]:4437", b"/a")),
        ("http://h/", (b"h", b"/")),
    ],
)
def test_a_url_names_host_and_path(url: str, found: tuple[bytes, bytes]) -> None:
    assert signed_urls.host_and_path(url) == found


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("h/a", "not a URL"),
        ("ftp://h/a", "not a URL"),
        ("http://h", "not a URL"),
        ("http://h/a#b", "not a URL"),
        ("http://h/a b", "not a URL"),
        ("http://h/a\n", "not a URL"),
        ("http://h/é", "not a URL"),
        ("http://user@h/a", "not a URL"),
        ("http://h:x/a", "its host"),
        ("http://h/a/../b", "its path"),
        ("http://h/a%2Fb", "its path"),
        ("http://h/a?signed=x", "already signed"),
    ],
)
def test_a_url_that_cannot_be_signed_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        signed_urls.host_and_path(url)


@pytest.mark.parametrize("query", ["", "?offset=-1"])
def test_a_signed_url_permits_what_it_was_signed_for(query: str) -> None:
    url = signed_urls.signed_url(TOKEN, f"http://h:1/a%20b{query}", ["PUT", "GET"], 99)
    value = signed_urls.value_in(url.partition("?")[2].encode())
    assert value is not None
    assert url == f"http://h:1/a%20b{query}{'&' if query else '?'}signed={value.decode()}"
    found, token = signed_urls.parse(value), tokens.parse_token(TOKEN)
    assert found is not None
    assert token is not None
    grant = found.grant(b"h:1", b"/a b")
    assert grant == Grant(token.token_id, 99, ("GET", "PUT"), b"h:1", b"/a b", False)
    assert signed_urls.is_signed(signed_urls.public_key_of(TOKEN), grant, found.signature)


def test_only_tokens_sign_and_only_the_methods_of_streams() -> None:
    with pytest.raises(ValueError, match="only a token of streamd's own"):
        signed_urls.signed_url(b"ey.a.jwt", "http://h/a", ["GET"], 99)
    with pytest.raises(ValueError, match="the methods must be among"):
        signed_urls.signed_url(TOKEN, "http://h/a", ["PATCH"], 99)


def test_a_process_that_signs_nothing_does_not_load_the_library() -> None:
    program = "import sys, streamd.app; print('cryptography' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert ran.stdout.strip() == "False"
