"""Limits the memory of answers that clients have not received yet, for all clients together.

A client that receives nothing keeps its answer in memory until the write timeout. Bytes shared by
many answers, such as recent ones, are in memory once and count once. An address may hold no more
than it leaves for the others (`fair_limits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from streamd.http.protocol.connections import Buffer
from streamd.http.protocol.refusals import error_response
from streamd.http.sockets.fair_limits import leaves_enough
from streamd.http.sockets.transports import is_joined
from streamd.protocol.problems import Problem

# Smaller answers are not counted: about as much waits in each client's socket as well.
UNCOUNTED_BYTES = 64 * 1024
FULL = error_response(
    Problem.OVERLOADED, "too many answers wait for slow clients (server.max_buffered_bytes)"
)


class OutgoingFull(Exception):
    """All answers together hold as much as they may."""


class Outgoing:
    """The answers under way, which may hold `limit_bytes` together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._all = _Held()
        self._clients: dict[str, _Held] = {}

    @property
    def held_bytes(self) -> int:
        """The bytes that all answers hold."""
        return self._all.bytes

    @contextmanager
    def holding(self, parts: Sequence[Buffer], size: int, client: str) -> Iterator[None]:
        """Count `parts`, of `size` bytes together, while they are sent to `client`.

        A lone answer is sent whatever its size. Raises `OutgoingFull`.
        """
        if size <= UNCOUNTED_BYTES:
            yield
            return
        assert size == sum(map(len, parts)), "what is counted is what is sent"
        copied = size if is_joined(parts, size) else 0
        wholes = [] if copied else [_whole(part) for part in parts]
        own = self._clients.setdefault(client, _Held())
        before, own_before = self._all.bytes, own.bytes
        self._all.add(wholes, copied)
        own.add(wholes, copied)
        try:
            if 0 < before < self._all.bytes and not self._may_hold(own if own_before else None):
                raise OutgoingFull
            yield
        finally:
            self._all.remove(wholes, copied)
            own.remove(wholes, copied)
            if not own.bytes:
                self._clients.pop(client, None)

    def _may_hold(self, own: _Held | None) -> bool:
        """Whether the total is within the limit, and `own`, the bytes of a client with several
        answers, within the client's share of it."""
        held, limit = self._all.bytes, self._limit_bytes
        return held <= limit and (own is None or leaves_enough(limit, held, own.bytes))


class _Held:
    """Buffers in memory, each counted once however many answers hold parts of it."""

    def __init__(self) -> None:
        self._shares: dict[int, int] = {}
        self.bytes = 0

    def add(self, wholes: Sequence[tuple[int, int]], copied: int) -> None:
        self.bytes += copied
        for whole, size in wholes:
            shares = self._shares.get(whole, 0)
            self._shares[whole] = shares + 1
            if not shares:
                self.bytes += size

    def remove(self, wholes: Sequence[tuple[int, int]], copied: int) -> None:
        self.bytes -= copied
        for whole, size in wholes:
            shares = self._shares.pop(whole) - 1
            if shares:
                self._shares[whole] = shares
            else:
                self.bytes -= size
        assert self.bytes >= 0, "nothing is removed twice"


def _whole(part: Buffer) -> tuple[int, int]:
    """The object that a part keeps in memory, by its id, and its size in bytes."""
    whole = part.obj if isinstance(part, memoryview) else part
    return id(whole), memoryview(whole).nbytes
