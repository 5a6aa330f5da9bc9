"""Tokens of clients in the state: made, given new secrets, revoked and ended by the log alone.

So all replicas know the same tokens, and a revocation holds on a node as soon as the node has
applied it. The state has digests of secrets, never a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from streamd.auth.tokens import is_same_digest
from streamd.streams import keys
from streamd.streams.commands import Outcome, Result
from streamd.streams.tables import KeyValue
from streamd.streams.token_commands import CreateToken, RotateToken, TokenCommand

MAX_TOKENS = 10_000
_ROWS_AT_ONCE = 1000
# What a row's numbers can hold: a command of the log may ask for more.
_LAST_MS = 2**63 - 1

_ENCODER = msgspec.msgpack.Encoder()


class Token(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of a token. Times are log time, in milliseconds since the epoch.

    It is valid until `expires_ms`, or without an end. After a rotation the secret before it, of
    digest `former_digest`, is valid until `former_until_ms`. A secret's public key is empty if it
    was made before tokens could sign URLs. Scopes are in a tuple because the garbage collector
    would walk a million texts in lists.
    """

    name: str
    digest: bytes
    scopes: tuple[str, ...]
    created_ms: int
    expires_ms: int | None = None
    former_digest: bytes = b""
    former_until_ms: int = 0
    public_key: bytes = b""
    former_public_key: bytes = b""

    def has_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms

    def ends_ms(self, digest: bytes) -> int | None:
        """When the secret of that digest ends, None for never; 0 for a secret of another token."""
        if is_same_digest(digest, self.digest):
            return self.expires_ms
        return self._former_ends_ms() if is_same_digest(digest, self.former_digest) else 0

    def key_ends_ms(self, public_key: bytes) -> int | None:
        """When the secret with that public key ends, as `ends_ms`."""
        if public_key and public_key == self.public_key:
            return self.expires_ms
        return self._former_ends_ms() if public_key and public_key == self.former_public_key else 0

    def _former_ends_ms(self) -> int:
        if self.expires_ms is None:
            return self.former_until_ms
        return min(self.expires_ms, self.former_until_ms)


_DECODER = msgspec.msgpack.Decoder(Token)


class Tokens:
    """All tokens by id, always in memory: requests that guess ids must not make a node read its
    disk. `version` is another object after each change."""

    def __init__(self, store: KeyValue) -> None:
        """Blocks for a read."""
        self.version = object()
        self._tokens = dict(_stored(store))
        self._ids = {token.name: token_id for token_id, token in self._tokens.items()}
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return len(self._tokens)

    def get(self, token_id: int) -> Token | None:
        return self._tokens.get(token_id)

    def id_of(self, name: str) -> int | None:
        """The id of the token with that name."""
        return self._ids.get(name)

    def items(self) -> Iterable[tuple[int, Token]]:
        return self._tokens.items()

    def put(self, token_id: int, token: Token) -> None:
        self._tokens[token_id] = token
        self._ids[token.name] = token_id
        self._changed(token_id)

    def delete(self, token_id: int) -> None:
        """Forget a token that exists."""
        del self._ids[self._tokens.pop(token_id).name]
        self._changed(token_id)

    def _changed(self, token_id: int) -> None:
        self._dirty.add(token_id)
        self.version = object()

    def begin_flush(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The rows to store, as of now."""
        dirty, self._dirty = self._dirty, set()
        for token_id in dirty:
            token = self._tokens.get(token_id)
            raw = None if token is None else _ENCODER.encode(token)
            yield keys.TOKEN + keys.number(token_id), raw


def _stored(store: KeyValue) -> Iterator[tuple[int, Token]]:
    start, stop = keys.TOKEN, keys.end_of(keys.TOKEN)
    while rows := store.scan(start, stop, limit=_ROWS_AT_ONCE):
        for row, raw in rows:
            yield keys.parse_id(row), _DECODER.decode(raw)
        start = rows[-1][0] + b"\0"


def apply(tokens: Tokens, command: TokenCommand, now_ms: int) -> Outcome:
    """Apply a command about a token at log time `now_ms`."""
    match command:
        case CreateToken():
            return Outcome(_create(tokens, command, now_ms))
        case RotateToken():
            return Outcome(_rotate(tokens, command, now_ms))
    if tokens.get(command.token_id) is None:
        return Outcome(Result.TOKEN_NOT_FOUND)
    tokens.delete(command.token_id)
    return Outcome(Result.DELETED)


def _create(tokens: Tokens, command: CreateToken, now_ms: int) -> Result:
    named = tokens.id_of(command.name)
    if named is not None:
        _forget_expired(tokens, [named], now_ms)
    if len(tokens) >= MAX_TOKENS:
        _forget_expired(tokens, [token_id for token_id, _ in tokens.items()], now_ms)
    if tokens.id_of(command.name) is not None or tokens.get(command.token_id) is not None:
        return Result.TOKEN_EXISTS
    if len(tokens) >= MAX_TOKENS:
        return Result.TOO_MANY_TOKENS
    token = Token(
        command.name,
        command.digest,
        tuple(command.scopes),
        now_ms,
        _end(now_ms, command.ttl_ms),
        public_key=command.public_key,
    )
    tokens.put(command.token_id, token)
    return Result.CREATED


def _forget_expired(tokens: Tokens, ids: Iterable[int], now_ms: int) -> None:
    for token_id in ids:
        token = tokens.get(token_id)
        if token is not None and token.has_expired(now_ms):
            tokens.delete(token_id)


def _rotate(tokens: Tokens, command: RotateToken, now_ms: int) -> Result:
    token = tokens.get(command.token_id)
    if token is None or token.has_expired(now_ms):
        return Result.TOKEN_NOT_FOUND
    if command.digest == token.digest:
        return Result.DONE
    expires_ms = token.expires_ms if command.ttl_ms is None else _end(now_ms, command.ttl_ms)
    rotated = replace(
        token,
        digest=command.digest,
        expires_ms=expires_ms,
        former_digest=token.digest,
        former_until_ms=_end(now_ms, command.overlap_ms),
        public_key=command.public_key,
        former_public_key=token.public_key,
    )
    tokens.put(command.token_id, rotated)
    return Result.DONE


def _end(now_ms: int, ttl_ms: int | None) -> int | None:
    return None if ttl_ms is None else min(now_ms + ttl_ms, _LAST_MS)
