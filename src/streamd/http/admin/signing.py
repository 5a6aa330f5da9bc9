"""``POST /auth/sign``: signs a URL with the token that the request itself is sent with."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Literal

import msgspec
from quart import Response, request

from streamd.auth import signed_urls, tokens
from streamd.auth.signed_urls import MAX_LIFE_S, Grant
from streamd.http.access.authority import compiled
from streamd.http.admin.operator import Answer, Operator
from streamd.protocol.problems import Problem
from streamd.streams.tokens import Token

_ENCODER = msgspec.json.Encoder()
_DEFAULT_LIFE_S = 3600


class UrlToSign(msgspec.Struct, forbid_unknown_fields=True):
    """What a signed URL is to permit. `url` is whole, or a path on the host that is asked; with
    `prefix` all paths below it are permitted, too. GET permits HEAD."""

    url: str
    methods: list[Literal["GET", "HEAD", "POST", "PUT", "DELETE"]] = msgspec.field(
        default_factory=lambda: ["GET"]
    )
    prefix: bool = False
    expires_in_s: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIFE_S)] = _DEFAULT_LIFE_S


class SignedUrl(msgspec.Struct):
    """The answer with a signed URL. `signed` is the parameter's value, for other URLs with the same
    prefix."""

    url: str
    signed: str
    expires_at_ms: int


async def sign(operator: Operator) -> Answer:
    """Sign what the body asks for."""
    asked = msgspec.json.decode(await request.get_data(), type=UrlToSign)
    raw = tokens.bearer(request.headers.get("Authorization", "").encode()) or b""
    presented = tokens.parse_token(raw)
    if presented is None:
        raise Problem.CANNOT_SIGN.error("only a token of streamd's own signs URLs")
    token = operator.node.group.state.tokens.get(presented.token_id)
    if token is None:
        raise Problem.CANNOT_SIGN.error(
            "a root token is one node's own and signs no URLs: create a token"
        )
    if await _key_of(operator, raw) not in (token.public_key, token.former_public_key):
        raise Problem.CANNOT_SIGN.error("an earlier release made this token: rotate it")
    url = request.host_url.rstrip("/") + asked.url if asked.url[:1] == "/" else asked.url
    methods = signed_urls.methods_in_order(asked.methods)
    try:
        host, path = signed_urls.host_and_path(url)
    except ValueError as error:
        raise Problem.INVALID_REQUEST.error(f"url: {error}") from None
    if methods is None:
        raise Problem.INVALID_REQUEST.error("methods: there is none")
    # What a prefix permits is judged at each request; a single path that the token may not use
    # is an error that its sender wants to know of.
    if not asked.prefix:
        _check_scopes(operator, token, methods, _raw_path(url))
    expires_s = operator.node.group.now_ms() // 1000 + asked.expires_in_s
    grant = Grant(presented.token_id, expires_s, methods, host, path, asked.prefix)
    signed = await operator.node.run_blocking(signed_urls.sign, raw, grant)
    body = SignedUrl(signed_urls.with_value(url, signed), signed, expires_s * 1000)
    response = Response(_ENCODER.encode(body), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response, 200


async def _key_of(operator: Operator, raw: bytes) -> bytes:
    """In a thread: the first one imports a library, which takes some 50 ms."""
    return await operator.node.run_blocking(signed_urls.public_key_of, raw)


def _raw_path(url: str) -> bytes:
    return b"/" + url.partition("?")[0].split("/", 3)[3].encode()


def _check_scopes(
    operator: Operator, token: Token, methods: Iterable[str], raw_path: bytes
) -> None:
    """Raises `ProblemError` if a token may not use a path with these methods."""
    wanted = [operator.scopes_of(method, raw_path) for method in methods]
    scopes = compiled(token.scopes)
    if None in wanted:
        raise Problem.INVALID_REQUEST.error("url: it names no stream or bucket with these methods")
    for need in chain.from_iterable(filter(None, wanted)):
        if not scopes.permit(need.verb, need.target):
            raise Problem.INSUFFICIENT_SCOPE.error(f"the token has no scope {need.verb} for this")
