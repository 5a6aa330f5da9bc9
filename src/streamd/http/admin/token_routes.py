"""The administration of tokens: a part of the operations app.

A secret leaves the node once, in the answer that makes it.
"""

from __future__ import annotations

from operator import attrgetter
from random import Random
from typing import TypeVar

import msgspec
from quart import Response, request
from quart_trio import QuartTrio

from streamd.audit_trail.notes import note
from streamd.auth import signed_urls, tokens
from streamd.auth.scopes import parse_scopes
from streamd.group.proposals import Unavailable
from streamd.http.admin.answers import Answer, answering, error_answer
from streamd.http.admin.signing import Signing
from streamd.http.admin.token_bodies import (
    NewToken,
    NewTokenBody,
    Rotation,
    TokenBody,
    TokensBody,
    body_of,
)
from streamd.node.node import Node
from streamd.streams.commands import CreateToken, Result, RevokeToken, RotateToken, TokenCommand
from streamd.streams.tokens import MAX_TOKENS

B = TypeVar("B")
_ENCODER = msgspec.json.Encoder()


class TokenRoutes:
    """The handlers, over a node. `random` makes ids and secrets."""

    def __init__(self, node: Node, random: Random) -> None:
        self._node = node
        self._random = random

    async def list_all(self) -> Answer:
        await self._node.group.reads.catch_up()
        known, now_ms = self._node.group.state.tokens, self._node.group.now_ms()
        shown = [body_of(token_id, token, now_ms) for token_id, token in known.items()]
        return _json(TokensBody(sorted(shown, key=attrgetter("name"))), 200)

    async def show(self, token: str) -> Answer:
        token_id = await self._find(token)
        shown = None if token_id is None else self._shown(token_id)
        return _not_found() if shown is None else _json(shown, 200)

    async def create(self) -> Answer:
        """Make a token as the body asks for."""
        asked = await _body(NewToken)
        if not tokens.is_token_name(asked.name):
            return error_answer(
                "INVALID_REQUEST",
                f"a name has 1 to {tokens.MAX_NAME_CHARACTERS} of A-Z a-z 0-9 . _ @ -, begins with "
                "a letter or digit, and does not look like an id",
                400,
            )
        parse_scopes(asked.scopes)
        token_id = self._random.getrandbits(63)
        secret = tokens.mint(token_id, self._random.randbytes(tokens.SECRET_BYTES))
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
            await self._public_key_of(secret),
        )
        if not self._node.may_have_tokens():
            raise Unavailable(
                "a member of the cluster has not said that it understands tokens: all must run "
                "this release, and be connected, when the first token is made"
            )
        match await self._propose(command):
            case Result.CREATED:
                return self._made(token_id, secret, 201)
            case Result.TOKEN_EXISTS:
                return error_answer("TOKEN_EXISTS", "a token has this name", 409)
            case result:
                assert result is Result.TOO_MANY_TOKENS, result
                return error_answer("TOO_MANY_TOKENS", f"there are {MAX_TOKENS} tokens", 409)

    async def rotate(self, token: str) -> Answer:
        """Give a token another secret."""
        asked = await _body(Rotation)
        token_id = await self._find(token)
        if token_id is None:
            return _not_found()
        note(overlap_s=asked.overlap_s, expires_in_s=asked.expires_in_s)
        secret = tokens.mint(token_id, self._random.randbytes(tokens.SECRET_BYTES))
        command = RotateToken(
            token_id,
            tokens.digest_of(secret.encode()),
            asked.overlap_s * 1000,
            _ms(asked.expires_in_s),
            await self._public_key_of(secret),
        )
        if await self._propose(command) is not Result.DONE:
            return _not_found()
        return self._made(token_id, secret, 200)

    async def revoke(self, token: str) -> Answer:
        token_id = await self._find(token)
        if token_id is None or await self._propose(RevokeToken(token_id)) is not Result.DELETED:
            return _not_found()
        return Response(b""), 204

    async def _public_key_of(self, secret: str) -> bytes:
        """In a thread: the first one imports a library, which takes some 50 ms."""
        return await self._node.run_blocking(signed_urls.public_key_of, secret.encode())

    async def _find(self, token: str) -> int | None:
        """The id of a token by its id or name, as of now."""
        await self._node.group.reads.catch_up()
        known = self._node.group.state.tokens
        token_id = tokens.parse_id(token)
        if token_id is None:
            token_id = known.id_of(token)
        found = None if token_id is None else known.get(token_id)
        if token_id is None or found is None:
            return None
        note(token=tokens.shown_id(token_id), name=found.name)
        return token_id

    async def _propose(self, command: TokenCommand) -> Result:
        """The result, once this node knows it."""
        outcome = await self._node.group.writes.propose(command)
        await self._node.group.reads.catch_up()
        return outcome.result

    def _made(self, token_id: int, secret: str, status: int) -> Answer:
        shown = self._shown(token_id)
        return _not_found() if shown is None else _json(NewTokenBody(secret, shown), status)

    def _shown(self, token_id: int) -> TokenBody | None:
        token = self._node.group.state.tokens.get(token_id)
        # Another request may have revoked it since.
        return None if token is None else body_of(token_id, token, self._node.group.now_ms())


def add(app: QuartTrio, node: Node, random: Random) -> None:
    """Add the routes to the operations app."""
    routes = TokenRoutes(node, random)
    for path, method, handler in (
        ("/auth/tokens", "GET", routes.list_all),
        ("/auth/tokens", "POST", routes.create),
        ("/auth/tokens/<token>", "GET", routes.show),
        ("/auth/tokens/<token>", "DELETE", routes.revoke),
        ("/auth/tokens/<token>/rotate", "POST", routes.rotate),
        ("/auth/sign", "POST", Signing(node).sign),
    ):
        app.add_url_rule(
            path, endpoint=handler.__name__, view_func=answering(handler), methods=[method]
        )


async def _body(kind: type[B]) -> B:
    return msgspec.json.decode(await request.get_data() or b"{}", type=kind)


def _ms(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


def _json(body: msgspec.Struct, status: int) -> Answer:
    response = Response(_ENCODER.encode(body), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response, status


def _not_found() -> Answer:
    return error_answer("TOKEN_NOT_FOUND", "no token has this id or name", 404)
