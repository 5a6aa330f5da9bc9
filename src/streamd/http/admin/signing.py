"""``POST /auth/sign``: signs a URL with the token that the request itself is sent with."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import msgspec
from quart import Response, request

from streamd.auth import signed_urls, tokens
from streamd.auth.signed_urls import Grant
from streamd.http.access.authority import compiled
from streamd.http.admin.answers import Answer, error_answer
from streamd.http.admin.operator import Operator
from streamd.http.admin.token_bodies import SignedUrl, UrlToSign
from streamd.streams.tokens import Token

_ENCODER = msgspec.json.Encoder()


async def sign(operator: Operator) -> Answer:
    """Sign what the body asks for."""
    asked = msgspec.json.decode(await request.get_data(), type=UrlToSign)
    raw = tokens.bearer(request.headers.get("Authorization", "").encode()) or b""
    presented = tokens.parse_token(raw)
    if presented is None:
        return _cannot_sign("only a token of streamd's own signs URLs")
    token = operator.node.group.state.tokens.get(presented.token_id)
    if token is None:
        return _cannot_sign("a root token is one node's own and signs no URLs: create a token")
    if await _key_of(operator, raw) not in (token.public_key, token.former_public_key):
        return _cannot_sign("an earlier release made this token: rotate it")
    url = request.host_url.rstrip("/") + asked.url if asked.url[:1] == "/" else asked.url
    methods = signed_urls.methods_in_order(asked.methods)
    try:
        host, path = signed_urls.host_and_path(url)
    except ValueError as error:
        return error_answer("INVALID_REQUEST", f"url: {error}", 400)
    if methods is None:
        return error_answer("INVALID_REQUEST", "methods: there is none", 400)
    # What a prefix permits is judged at each request; a single path that the token may not use
    # is an error that its sender wants to know of.
    if not asked.prefix and (refused := _refused(operator, token, methods, _raw_path(url))):
        return refused
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


def _refused(
    operator: Operator, token: Token, methods: Iterable[str], raw_path: bytes
) -> Answer | None:
    """The answer if a token may not use a path so."""
    wanted = [operator.scopes_of(method, raw_path) for method in methods]
    scopes = compiled(token.scopes)
    if None in wanted:
        message = "url: it names no stream or bucket with these methods"
        return error_answer("INVALID_REQUEST", message, 400)
    for need in chain.from_iterable(filter(None, wanted)):
        if not scopes.permit(need.verb, need.target):
            message = f"the token has no scope {need.verb} for this"
            return error_answer("INSUFFICIENT_SCOPE", message, 403)
    return None


def _cannot_sign(why: str) -> Answer:
    return error_answer("CANNOT_SIGN", why, 409)
