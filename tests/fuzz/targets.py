"""Functions of arbitrary bytes, each of which raises if a parser breaks a promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from streamd.auth import signed_urls, tokens
from streamd.auth.jwks import parse_keys
from streamd.auth.jwt import JWTRefused, UnknownKey, verify
from streamd.auth.scopes import ScopeError, Scopes, parse_scope
from streamd.http.protocol import fields
from streamd.http.protocol.heads import HeadParser
from streamd.http.protocol.raw_paths import BadPath
from streamd.http.protocol.routing import StreamRoute, path_of, resolve
from streamd.protocol.problems import ProblemError
from tests.auth.provider import NOW_MS, POLICY, claims, key_set, signing_key

_KEY = signing_key("one")
_KEYS = parse_keys(key_set(_KEY), POLICY.algorithms)
_JWT = _KEY.sign(claims())
_GRANT = signed_urls.Grant(7, 1_800_000_000, ("GET",), b"x", b"/v1/stream/a", False)
_TOKEN = tokens.mint(7, b"\0" * tokens.SECRET_BYTES)


def scopes(data: bytes) -> None:
    """A scope and a target: the compiled pattern says what the text says."""
    text, _, target = data.partition(b"\n")
    try:
        scope = parse_scope(text.decode("utf-8", "replace"))
    except ScopeError:
        return
    compiled = Scopes([scope])
    pattern = text.partition(b":")[2].decode("utf-8", "replace").encode()
    bucket, nul, name = target.partition(b"\0")
    if scope.verb == "operate":
        assert compiled.permit("operate", target) == _matches(pattern, target)
    elif nul and b"/" not in bucket and b"\0" not in name:
        assert compiled.permit(scope.verb, target) == _matches(pattern, bucket + b"/" + name)
    for other in ("read", "append", "operate", "admin"):
        if scope.verb not in (other, "admin"):
            assert not compiled.permit(other, target)


def _matches(pattern: bytes, name: bytes) -> bool:
    """As docs/auth.md says it."""
    return name.startswith(pattern[:-1]) if pattern.endswith(b"*") else name == pattern


def authorization(data: bytes) -> None:
    """An Authorization header holds a token whole, or none."""
    raw = tokens.bearer(data)
    if raw is None:
        return
    assert raw in data
    assert data[:6].lower() == b"bearer"
    assert b"," not in raw, "two tokens are none"
    presented = tokens.parse_token(raw)
    if presented is not None:
        assert raw.startswith(b"sd_%016x_" % presented.token_id)
        assert presented.digest == tokens.digest_of(raw)


def signed(data: bytes) -> None:
    """Host, path and query of a request with a signed URL: one spelling, and nothing forged."""
    query, _, rest = data.partition(b"\n")
    host, _, path = rest.partition(b"\n")
    given = signed_urls.value_in(query)
    value = signed_urls.parse(query if given is None else given)
    same_host, decoded = signed_urls.same_host(host), signed_urls.decoded_path(path)
    if value is None or same_host is None or decoded is None:
        return
    assert signed_urls.same_host(same_host) == same_host
    grant = value.grant(same_host, decoded)
    if grant is not None:
        assert signed_urls.covers(grant, decoded)
        if signed_urls.is_signed(_public_key(), grant, value.signature):
            assert grant == _GRANT, "only this was signed"


def _public_key() -> bytes:
    return signed_urls.public_key_of(_TOKEN.encode())


def jwt(data: bytes) -> None:
    """A JWT: any bytes, or any header and claims with a true signature."""
    header, newline, given = data.partition(b"\n")
    token = _KEY.sign_texts(header, given) if newline else data
    try:
        identity = verify(token, _KEYS, POLICY, NOW_MS)
    except (JWTRefused, UnknownKey):
        return
    assert newline or token.startswith(_JWT[: _JWT.rindex(b".")]), "a signature was forged"
    assert identity.ends_ms is not None
    assert identity.name.startswith("jwt:")
    assert identity.name.isprintable()


def head(data: bytes) -> None:
    """The head of a request is refused or has one meaning."""
    parser = HeadParser(100)
    try:
        parsed = parser.parse(data)
    except ProblemError:
        return
    headers = parsed.fields.headers
    assert not (b"content-length" in headers and b"transfer-encoding" in headers)
    assert parsed.fields.content_length is None or parsed.fields.content_length >= 0
    assert parsed.path == b"*" or parsed.path.startswith(b"/")
    assert all(0x20 < byte < 0x7F for byte in parsed.path + parsed.query)
    assert b".." not in unquote_to_bytes(parsed.path).split(b"/")
    again = parser.parse(data)
    assert (again.path, again.query, again.fields.headers) == (
        parsed.path,
        parsed.query,
        headers,
    )


def path(data: bytes) -> None:
    """A path names what its parts between slashes name, decoded once."""
    route = resolve(data)
    if not isinstance(route, StreamRoute):
        return
    prefix = b"/v1/stream/" if data.startswith(b"/v1/stream/") else b"/"
    parts = [unquote_to_bytes(part) for part in data[len(prefix) :].split(b"/")]
    assert not any(b"/" in part or part in (b"", b"..") for part in parts)
    bucket, _, name = route.key.partition(b"\0")
    assert [bucket, *name.split(b"/")] in (parts, [b"_default", *parts])
    again = resolve(path_of(bucket, name).encode())
    assert isinstance(again, BadPath) or again.key == route.key  # type: ignore[union-attr]
    if signed_urls.decoded_path(data) is not None:
        assert signed_urls.decoded_path(data) == prefix + b"/".join(parts)


def header(data: bytes) -> None:
    """Values of the protocol's headers and parameters are refused or taken, never anything else."""
    values = dict(zip(_HEADERS, data.split(b"\n"), strict=False))
    for parse in (
        fields.wants_close,
        fields.stream_seq,
        fields.producer,
        fields.fork_source,
        lambda given: fields.create_settings(given, None),
    ):
        with suppress(ProblemError):
            parse(values)
    with suppress(ProblemError):
        fields.read_query(data)
    with suppress(ProblemError):
        fields.snapshot_offset(data)


_HEADERS = (
    b"stream-closed", b"stream-seq", b"producer-id", b"producer-epoch", b"producer-seq",
    b"stream-ttl", b"stream-expires-at", b"stream-forked-from", b"stream-fork-offset",
    b"content-type",
)  # fmt: skip


class Target(NamedTuple):
    """A function to fuzz, and inputs to begin with."""

    run: Callable[[bytes], None]
    seeds: Sequence[bytes]


_HEAD = b"GET /v1/stream/a%20b?offset=-1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
TARGETS = {
    "scopes": Target(
        scopes, (b"read:agents/run-*\nagents\0run-1", b"admin:*\nx", b"operate:cluster/*\ncluster/")
    ),
    "authorization": Target(
        authorization, (b"Bearer " + _TOKEN.encode(), b"bearer  abc==", b"Bearer a, Bearer b")
    ),
    "signed": Target(
        signed,
        (
            b"signed=" + signed_urls.sign(_TOKEN.encode(), _GRANT).encode() + b"\nx\n/v1/stream/a",
            b"a=1&signed=1.0000000000000007.1.GET-HEAD.4." + b"A" * 86 + b"\nx:80\n/v1/x",
        ),
    ),
    "jwt": Target(
        jwt,
        (
            _JWT,
            b'{"alg":"EdDSA","kid":"one"}\n{"iss":"https://id.example","aud":"streamd","sub":"a"}',
        ),
    ),
    "head": Target(
        head,
        (
            _HEAD,
            b"POST http://x/a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
    ),
    "path": Target(
        path, (b"/v1/stream/a%2Fb/c", b"/agents/run%2e1/snapshot/0_1", b"/v1/stream/%C3%A9")
    ),
    "header": Target(
        header,
        (
            b"true\n1\nproducer\n0\n7\n60\n2030-01-01T00:00:00Z\n/v1/stream/a\n0_0\ntext/plain",
            b"offset=0_0&live=sse&cursor=1&consistency=local",
        ),
    ),
}
