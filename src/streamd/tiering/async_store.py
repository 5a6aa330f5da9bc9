"""The cold store as a node uses it: calls in threads, retries, and a circuit breaker."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeVar, TypeVarTuple

import structlog
import trio
from crc32c import crc32c

from streamd.config.settings import ColdConfig
from streamd.objectstore.check import check_object_store
from streamd.objectstore.errors import (
    ColdError,
    ColdRefused,
    ColdUnavailable,
    ObjectCorrupt,
    ObjectMissing,
    StoreFaulty,
)
from streamd.objectstore.fs import FsStore
from streamd.objectstore.names import digest_of
from streamd.objectstore.objects import MAX_PAGE, ObjectInfo, ObjectStore
from streamd.objectstore.packs import read_slices
from streamd.process.threads import RunBlocking
from streamd.streams.chunks import Chunk
from streamd.streams.model import SliceRef

log = structlog.get_logger("streamd.objectstore")

MAX_ATTEMPTS = 4
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 3.0
# How much of an object is in memory while it is hashed.
_DIGEST_BYTES = 4 * 1024 * 1024

T = TypeVar("T")
Args = TypeVarTuple("Args")


def open_object_store(config: ColdConfig, data_dir: Path) -> ObjectStore:
    """The object store that the configuration names; each cluster has a folder in it.

    Makes no request yet. Raises `ColdRefused` for settings that cannot work.
    """
    if config.backend == "fs":
        return FsStore(Path(config.fs_path) if config.fs_path else data_dir / "cold")
    assert config.backend == "s3"
    assert config.s3_bucket is not None
    # The client's library is a fifth of what a start loads.
    from streamd.objectstore.s3 import S3Store

    prefix = config.s3_prefix.strip("/")
    return S3Store(
        bucket=config.s3_bucket,
        region=config.s3_region,
        endpoint=config.s3_endpoint,
        access_key_id=config.s3_access_key_id,
        secret_access_key=config.s3_secret_access_key,
        session_token=config.s3_session_token,
        ca_file=config.s3_ca,
        prefix=f"{prefix}/" if prefix else "",
        timeout_s=config.timeout_ms / 1000,
        # Readers have as many requests as the node's own work.
        connections=2 * config.max_requests,
    )


class StoreHealth:
    """A circuit breaker. It is open while the store is unavailable: then one reader at a time may
    try whether it is back, and the others fail at once. Any answered call closes it.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._answered_at = -math.inf
        self._away_since: float | None = None
        self._error = ""
        self._probing = False
        # For metrics: attempts that failed and were repeated, and times that the store became
        # unavailable.
        self.retries = 0
        self.outages = 0

    @property
    def away_s(self) -> float | None:
        """How long the store has not answered, in seconds; None while it does."""
        return None if self._away_since is None else trio.current_time() - self._away_since

    def answered(self) -> None:
        """Note that the store answered, even with a refusal."""
        self._answered_at = trio.current_time()
        if self._away_since is not None:
            log.info("the cold store answers again", away_s=round(self.away_s or 0.0, 1))
            self._away_since = None

    def failed(self, begun_at: float, error: ColdUnavailable) -> None:
        """Note that a call that began at this time on Trio's clock has failed for good.

        If the store has answered other calls since then, it is available.
        """
        if self._answered_at > begun_at:
            return
        self._error = str(error)
        if self._away_since is None:
            self._away_since = trio.current_time()
            self.outages += 1
            log.warning("the cold store does not answer", error=self._error)

    @contextmanager
    def admitting(self) -> Iterator[None]:
        """Let a reader ask the store. Raises `ColdUnavailable` while it is known to be unavailable
        and another reader is asking."""
        if self._away_since is None:
            yield
            return
        if self._probing:
            raise ColdUnavailable(
                f"{self._place} has not answered for {self.away_s:.1f} s: {self._error}"
            )
        self._probing = True
        try:
            yield
        finally:
            self._probing = False


class AsyncObjectStore:
    """An object store without blocking. Calls raise the exceptions of `ObjectStore`.

    A call that the store does not answer is retried a few times with growing pauses, until
    `timeout_s` have passed; tasks that must succeed call again. If the store fails to return one
    object but returns others, that object is damaged: `ObjectCorrupt`.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        run_blocking: RunBlocking,
        random: Random,
        max_requests: int,
        timeout_s: float = 30.0,
    ) -> None:
        self._store = store
        self._run_blocking = run_blocking
        self._random = random
        self._max_requests = max_requests
        self._limiter = trio.CapacityLimiter(max_requests)
        self._serves_readers = False
        self.timeout_s = timeout_s
        self.health = StoreHealth(store.place)
        # The last two objects that were read without an error.
        self._read_lately: list[str] = []

    @classmethod
    def open(
        cls, config: ColdConfig, data_dir: Path, run_blocking: RunBlocking, random: Random
    ) -> AsyncObjectStore:
        """The store that the configuration names; nothing is asked yet. Blocks.

        Raises `ColdRefused` for what cannot work.
        """
        return cls(
            open_object_store(config, data_dir),
            run_blocking=run_blocking,
            random=random,
            max_requests=config.max_requests,
            timeout_s=config.timeout_ms / 1000,
        )

    def for_readers(self) -> AsyncObjectStore:
        """The same store with as many requests of its own, so that readers and the node's own work
        do not wait for each other. Its readers fail at once while the store is unavailable."""
        readers = copy(self)
        readers._limiter = trio.CapacityLimiter(self._max_requests)
        readers._serves_readers = True
        return readers

    @property
    def place(self) -> str:
        return self._store.place

    async def put(self, name: str, content: bytes) -> None:
        """Write an object, durably; it appears whole or not at all."""
        await self._call(self._store.put, name, content)

    async def put_verified(self, name: str, content: bytes) -> None:
        """`put`, then read all of it back; before this returns nothing may build on the object.

        Raises `ObjectCorrupt` when the store holds something else under that name.
        """
        await self.put(name, content)
        wanted = await self._run_blocking(digest_of, content, limiter=self._limiter)
        found, size = await self.digest(name)
        if (found, size) != (wanted, len(content)):
            raise ObjectCorrupt(
                f"{name} in {self.place} does not hold the bytes just written to it"
            )

    async def get(self, name: str, offset: int, length: int, *, crc: int | None = None) -> bytes:
        """Exactly `length` bytes from `offset` on; with `crc`, bytes that have that CRC-32C.

        Wrong bytes are requested once more, because they may have been damaged on the way. Raises
        `ObjectMissing`, and `ObjectCorrupt` when they are wrong again.
        """
        return await self._read(name, _checked_get, self._store, name, offset, length, crc)

    def slices(self, pack: str, refs: Sequence[SliceRef]) -> Awaitable[list[Chunk]]:
        """The chunks of slices that lie end to end in a pack, read in one request and verified.

        Raises as `get` does.
        """
        return self._read(pack, read_slices, self._store, pack, refs)

    async def stat(self, name: str) -> ObjectInfo:
        """Raises `ObjectMissing`."""
        return await self._read(name, self._store.stat, name)

    async def page(
        self, prefix: str, *, after: str = "", limit: int = MAX_PAGE
    ) -> list[ObjectInfo]:
        """Up to `limit` objects in the order of their names; an empty page is the end."""
        return await self._call(_page, self._store, prefix, after, limit)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; missing ones count as deleted."""
        for start in range(0, len(names), MAX_PAGE):
            await self._call(self._store.delete, names[start : start + MAX_PAGE])

    async def delete_now(self, names: Sequence[str]) -> None:
        """Delete up to `MAX_PAGE` objects in one request, made once: what allowed it may not hold
        for a later attempt."""
        assert len(names) <= MAX_PAGE
        await self._run_blocking(self._store.delete, names, limiter=self._limiter)

    async def digest(self, name: str) -> tuple[str, int]:
        """The hexadecimal SHA-256 of the bytes in the store, and their size."""
        size = (await self.stat(name)).size
        digest = hashlib.sha256()
        for offset in range(0, size, _DIGEST_BYTES):
            part = await self.get(name, offset, min(_DIGEST_BYTES, size - offset))
            await self._run_blocking(digest.update, part, limiter=self._limiter)
        return digest.hexdigest(), size

    async def check(self, timeout_s: float = math.inf) -> None:
        """Write, read, list and delete a small object, as the start of a node does.

        The exception's message says which step failed, and where; it is `ColdUnavailable` also when
        the time is over. `run_blocking` must abandon calls that are cancelled, or this waits for a
        call that does not end.
        """
        unique = f"{self._random.getrandbits(64):016x}"
        begun = ["reached"]
        with trio.move_on_after(timeout_s):
            await self._call(check_object_store, self._store, unique, begun)
            return
        raise ColdUnavailable(f"{self.place} cannot be {begun[-1]}: not within {timeout_s:g} s")

    def close(self) -> None:
        self._store.close()

    async def _read(self, name: str, call: Callable[[*Args], T], *args: *Args) -> T:
        """Read something from an object, twice if the bytes are wrong: damage on the way passes.

        An object that the store fails to return is damaged if the store returns others.
        """
        try:
            try:
                found = await self._call(call, *args)
            except ObjectCorrupt:
                self.health.retries += 1
                found = await self._call(call, *args)
        except StoreFaulty:
            if not await self._gives_other_objects(name):
                raise
            try:
                found = await self._call(call, *args)
            except StoreFaulty as error:
                raise ObjectCorrupt(f"{error}; but other objects can be read") from error
        if name not in self._read_lately:
            self._read_lately[:] = [*self._read_lately[-1:], name]
        return found

    async def _gives_other_objects(self, name: str) -> bool:
        """Whether the store returns another object: one read recently, or one written now. Raises
        `ColdUnavailable` when it does not answer."""
        for other in self._read_lately:
            if other != name:
                with suppress(ColdRefused, ObjectMissing, ObjectCorrupt, StoreFaulty):
                    await self._call(self._store.get, other, 0, 1)
                    return True
        try:
            await self.check()
        except (ColdRefused, ObjectMissing, ObjectCorrupt, StoreFaulty):
            return False
        return True

    async def _call(self, call: Callable[[*Args], T], *args: *Args) -> T:
        begun_at, pause_s = trio.current_time(), FIRST_PAUSE_S
        with self.health.admitting() if self._serves_readers else nullcontext():
            for attempt in count(1):
                try:
                    found = await self._run_blocking(call, *args, limiter=self._limiter)
                except ColdUnavailable as error:
                    late = trio.current_time() + pause_s > begun_at + self.timeout_s
                    if attempt == MAX_ATTEMPTS or late:
                        if not isinstance(error, StoreFaulty):
                            self.health.failed(begun_at, error)
                        raise
                except ColdError:
                    self.health.answered()
                    raise
                else:
                    self.health.answered()
                    return found
                self.health.retries += 1
                # Between half and all of it, so that nodes do not retry in step.
                await trio.sleep(pause_s * self._random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
        raise AssertionError


def _page(store: ObjectStore, prefix: str, after: str, limit: int) -> list[ObjectInfo]:
    return store.page(prefix, after=after, limit=limit)


def _checked_get(store: ObjectStore, name: str, offset: int, length: int, crc: int | None) -> bytes:
    content = store.get(name, offset, length)
    if crc is not None and crc32c(content) != crc:
        raise ObjectCorrupt(
            f"{name} in {store.place}, {length} bytes from {offset}: the checksum is wrong"
        )
    return content
