"""What answers hold in memory while clients take them, limited for all clients together.

A reader that takes nothing keeps what was read for it until it is given up. What many of them
share, as readers of recent bytes do, is in memory once and counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from streamd.http.messages import Buffer, error_response
from streamd.http.transports import is_joined

# Less is not worth counting: about so much waits in each client's socket as well.
UNCOUNTED_BYTES = 64 * 1024
FULL = error_response(
    503, "OVERLOADED", "too much waits for other clients to take it", b"Retry-After: 1\r\n"
)


class OutgoingFull(Exception):
    """So much waits to be taken by clients that no more may be added."""


class Outgoing:
    """The answers being sent, which may hold `limit_bytes` together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._shares: dict[int, int] = {}
        self.held_bytes = 0

    @contextmanager
    def holding(self, parts: Sequence[Buffer], size: int) -> Iterator[None]:
        """Count `parts`, of `size` bytes together, while they are sent. Raises `OutgoingFull`.

        An answer is sent whatever its size when there is no other.
        """
        if size <= UNCOUNTED_BYTES:
            yield
            return
        before = self.held_bytes
        copied = size if is_joined(parts, size) else 0
        wholes = [] if copied else [_whole(part) for part in parts]
        for whole, whole_size in wholes:
            self._take(whole, whole_size)
        self.held_bytes += copied
        try:
            if 0 < before < self.held_bytes and self.held_bytes > self._limit_bytes:
                raise OutgoingFull
            yield
        finally:
            self.held_bytes -= copied
            for whole, whole_size in wholes:
                self._release(whole, whole_size)

    def _take(self, whole: int, size: int) -> None:
        shares = self._shares.get(whole, 0)
        self._shares[whole] = shares + 1
        if not shares:
            self.held_bytes += size

    def _release(self, whole: int, size: int) -> None:
        shares = self._shares.pop(whole) - 1
        if shares:
            self._shares[whole] = shares
        else:
            self.held_bytes -= size


def _whole(part: Buffer) -> tuple[int, int]:
    """What a part keeps in memory: which object, and its bytes."""
    whole = part.obj if isinstance(part, memoryview) else part
    return id(whole), memoryview(whole).nbytes
