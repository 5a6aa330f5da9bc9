"""The administration of tokens.

A secret leaves the node once, in the answer that makes it.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, TypeVar

import msgspec
from quart import Response, request

from streamd.audit_trail.trail import note
from streamd.auth import signed_urls, tokens
from streamd.auth.scopes import parse_scopes
from streamd.auth.tokens import shown_id
from streamd.group.log_formats import SUBSCRIPTIONS_FORMAT, TOKENS_FORMAT
from streamd.group.proposals import Unavailable
from streamd.http.admin.operator import Answer, Operator
from streamd.protocol.problems import Problem
from streamd.streams.bounds import MAX_TTL_S
from streamd.streams.commands import Result
from streamd.streams.token_commands import CreateToken, RevokeToken, RotateToken, TokenCommand
from streamd.streams.tokens import Token

B = TypeVar("B")
_ENCODER = msgspec.json.Encoder()
_Seconds = Annotated[int, msgspec.Meta(ge=1, le=MAX_TTL_S)]
_DEFAULT_OVERLAP_S = 3600


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    """A token to create. Without `expires_in_s` it has no end."""

    name: str
    scopes: list[str]
    expires_in_s: _Seconds | None = None


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """For how long the secret before it stays valid. With `expires_in_s` the token's end moves to
    so long from now."""

    overlap_s: Annotated[int, msgspec.Meta(ge=0, le=MAX_TTL_S)] = _DEFAULT_OVERLAP_S
    expires_in_s: _Seconds | None = None


class TokenBody(msgspec.Struct):
    """What may be seen of a token. `former_secret_until_ms` is when the secret before the present
    one ends, if it has not ended yet."""

    id: str
    name: str
    scopes: list[str]
    created_at_ms: int
    expires_at_ms: int | None
    expired: bool
    former_secret_until_ms: int | None


class NewTokenBody(msgspec.Struct):
    """The answer with a new secret: `token` is what clients send."""

    token: str
    about: TokenBody


class TokensBody(msgspec.Struct):
    """All tokens, in the order of their names."""

    tokens: list[TokenBody]


def body_of(token_id: int, token: Token, now_ms: int) -> TokenBody:
    """What may be seen of a token at `now_ms`."""
    return TokenBody(
        shown_id(token_id),
        token.name,
        list(token.scopes),
        token.created_ms,
        token.expires_ms,
        token.has_expired(now_ms),
        token.former_until_ms if token.former_until_ms > now_ms else None,
    )


async def list_all(operator: Operator) -> Answer:
    """All tokens, without their secrets."""
    await operator.node.group.reads.catch_up()
    known, now_ms = operator.node.group.state.tokens, operator.node.group.now_ms()
    shown = [body_of(token_id, token, now_ms) for token_id, token in known.items()]
    return _json(TokensBody(sorted(shown, key=attrgetter("name"))), 200)


async def show(operator: Operator, token: str) -> Answer:
    """One token, by its id or name."""
    return _json(_shown(operator, await _find(operator, token)), 200)


async def create(operator: Operator) -> Answer:
    """Make a token as the body asks for."""
    asked = await _body(NewToken)
    if not tokens.is_token_name(asked.name):
        raise Problem.INVALID_REQUEST.error(
            f"a name has 1 to {tokens.MAX_NAME_CHARACTERS} of A-Z a-z 0-9 . _ @ -, begins with "
            "a letter or digit, and does not look like an id"
        )
    scopes = parse_scopes(asked.scopes)
    is_new = any(one.verb == "subscribe" for one in scopes)
    if is_new and not operator.node.log_formats.may_use(SUBSCRIPTIONS_FORMAT):
        # A member of an earlier release would refuse the command that the others apply.
        raise Problem.FEATURES_NOT_RAISED.error("the scope subscribe needs a higher feature level")
    token_id = operator.random.getrandbits(63)
    secret = tokens.mint(token_id, operator.random.randbytes(tokens.SECRET_BYTES))
    note(
        token=tokens.shown_id(token_id),
        name=asked.name,
        scopes=asked.scopes,
        expires_in_s=asked.expires_in_s,
    )
    command = CreateToken(
        token_id,
        asked.name,
        tokens.digest_of(secret.encode()),
        asked.scopes,
        _ms(asked.expires_in_s),
        await _public_key_of(operator, secret),
    )
    if not operator.node.log_formats.may_use(TOKENS_FORMAT):
        raise Unavailable(
            "this node does not know that all members understand tokens: all must run "
            "this release, and be connected, when the first token is made"
        )
    match await _propose(operator, command):
        case Result.CREATED:
            return _made(operator, token_id, secret, 201)
        case Result.TOKEN_EXISTS:
            raise Problem.TOKEN_EXISTS.error()
        case result:
            assert result is Result.TOO_MANY_TOKENS, result
            raise Problem.TOO_MANY_TOKENS.error()


async def rotate(operator: Operator, token: str) -> Answer:
    """Give a token another secret."""
    asked = await _body(Rotation)
    token_id = await _find(operator, token)
    note(overlap_s=asked.overlap_s, expires_in_s=asked.expires_in_s)
    secret = tokens.mint(token_id, operator.random.randbytes(tokens.SECRET_BYTES))
    command = RotateToken(
        token_id,
        tokens.digest_of(secret.encode()),
        asked.overlap_s * 1000,
        _ms(asked.expires_in_s),
        await _public_key_of(operator, secret),
    )
    if await _propose(operator, command) is not Result.DONE:
        raise Problem.TOKEN_NOT_FOUND.error()
    return _made(operator, token_id, secret, 200)


async def revoke(operator: Operator, token: str) -> Answer:
    """Revoke a token, by its id or name."""
    command = RevokeToken(await _find(operator, token))
    if await _propose(operator, command) is not Result.DELETED:
        raise Problem.TOKEN_NOT_FOUND.error()
    return Response(b""), 204


async def _public_key_of(operator: Operator, secret: str) -> bytes:
    """In a thread: the first one imports a library, which takes some 50 ms."""
    return await operator.node.run_blocking(signed_urls.public_key_of, secret.encode())


async def _find(operator: Operator, token: str) -> int:
    """The id of a token by its id or name, as of now. Raises `TOKEN_NOT_FOUND`."""
    await operator.node.group.reads.catch_up()
    known = operator.node.group.state.tokens
    token_id = tokens.parse_id(token)
    if token_id is None:
        token_id = known.id_of(token)
    found = None if token_id is None else known.get(token_id)
    if token_id is None or found is None:
        raise Problem.TOKEN_NOT_FOUND.error()
    note(token=tokens.shown_id(token_id), name=found.name)
    return token_id


async def _propose(operator: Operator, command: TokenCommand) -> Result:
    """The result, once this node knows it."""
    outcome = await operator.node.group.writes.propose(command)
    await operator.node.group.reads.catch_up()
    return outcome.result


def _made(operator: Operator, token_id: int, secret: str, status: int) -> Answer:
    return _json(NewTokenBody(secret, _shown(operator, token_id)), status)


def _shown(operator: Operator, token_id: int) -> TokenBody:
    token = operator.node.group.state.tokens.get(token_id)
    if token is None:  # Another request has revoked it since.
        raise Problem.TOKEN_NOT_FOUND.error()
    return body_of(token_id, token, operator.node.group.now_ms())


async def _body(kind: type[B]) -> B:
    return msgspec.json.decode(await request.get_data() or b"{}", type=kind)


def _ms(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


def _json(body: msgspec.Struct, status: int) -> Answer:
    response = Response(_ENCODER.encode(body), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response, status
