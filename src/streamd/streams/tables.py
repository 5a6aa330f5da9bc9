"""A table of the state: decoded values by key, with unstored ones kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

import msgspec

V = TypeVar("V")

_ENCODER = msgspec.msgpack.Encoder()


class KeyValue(Protocol):
    """The ordered store underneath; its calls may block for a disk read."""

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(
        self, start: bytes, stop: bytes, *, limit: int, max_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]: ...


class Table(Generic[V]):
    """Values of one kind, read through a bounded cache.

    A value handed out may be changed in place; `put` marks it to be stored. Unstored values are
    never dropped: until the store has them, the cache holds the only copy. A key known to be
    absent is cached as None.
    """

    # The keys of values that the store does not have yet.
    dirty: set[bytes]

    def __init__(
        self, kind: type[V], prefix: bytes, load: Callable[[bytes], bytes | None], limit: int
    ) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._prefix = prefix
        self._load = load
        self._limit = limit
        self._live: dict[bytes, V | None] = {}
        self.dirty = set()
        self._flushing: set[bytes] = set()

    def __contains__(self, key: bytes) -> bool:
        """Whether `get` answers from memory."""
        return key in self._live

    def __len__(self) -> int:
        return len(self._live)

    def get(self, key: bytes) -> V | None:
        try:
            return self._live[key]
        except KeyError:
            raw = self._load(self._prefix + key)
            return self.install(key, raw)

    def install(self, key: bytes, raw: bytes | None) -> V | None:
        """Take a value as loaded from the store, unless a newer one is in memory."""
        if key in self._live:
            return self._live[key]
        if len(self._live) > self._limit and not self._flushing:
            self._evict()
        value = None if raw is None else self._decoder.decode(raw)
        self._live[key] = value
        return value

    def put(self, key: bytes, value: V) -> None:
        self._live[key] = value
        self.dirty.add(key)

    def delete(self, key: bytes) -> None:
        self._live[key] = None
        self.dirty.add(key)

    def begin_flush(self) -> Iterable[tuple[bytes, bytes | None]]:
        """The values to store, encoded now; call `end_flush` when the store has them."""
        self._flushing, self.dirty = self.dirty, set()
        for key in self._flushing:
            value = self._live[key]
            yield self._prefix + key, None if value is None else _ENCODER.encode(value)

    def end_flush(self) -> None:
        self._flushing = set()
        self._evict()

    def _evict(self) -> None:
        """Drop the oldest values above the limit; reading one again costs a load."""
        excess = len(self._live) - self._limit
        if excess <= 0:
            return
        oldest = list(islice(self._live, excess + self._limit // 8))
        for key in oldest:
            if key not in self.dirty:
                del self._live[key]
