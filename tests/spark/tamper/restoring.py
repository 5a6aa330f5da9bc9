"""What a restore makes of a store: whether a mutation changes anything that it could show."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar, TypeVarTuple

import msgspec
import trio

from streamd.backup.base import Choice, RestoreRefused
from streamd.backup.restore import restore
from streamd.objectstore.errors import ColdError
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.model import Blob, Header, Pack, Stream
from streamd.tiering.async_store import AsyncObjectStore
from tests.spark.tamper.stores import Objects, write_objects
from tests.support.archived import NOW_MS, Quiet, node_config
from tests.support.flaky_store import FlakyStore

T = TypeVar("T")
Args = TypeVarTuple("Args")
Rows = dict[bytes, bytes]
Shown = Rows | str
"""The rows of a restored state, or why there is none."""

# What is left to be removed, here or in the cold store.
_GARBAGE = keys.GARBAGE, keys.TRIM, keys.DROPPED
_OF_SUBSCRIPTIONS = keys.NAMED, keys.LINKED, keys.PENDING
decode, encode = msgspec.msgpack.decode, msgspec.msgpack.encode


class Restorer:
    """Restores stores of a cluster to the entries that are asked for, and to their end."""

    def __init__(self, directory: Path, cluster_id: str, indexes: Sequence[int]) -> None:
        self._directory = directory
        self._cluster_id = cluster_id
        self._indexes = indexes

    def shown(self, objects: Objects) -> list[Shown]:
        """The state as of each of the indexes, and at the end."""
        root = self._directory / "cold"
        write_objects(root, objects)
        try:
            return [self._one(root, index) for index in (*self._indexes, None)]
        finally:
            shutil.rmtree(self._directory)

    def _one(self, root: Path, index: int | None) -> Shown:
        data = self._directory / f"restored-{index}"
        try:
            trio.run(_restore, root, data, Choice(self._cluster_id, index))
        except (ColdError, RestoreRefused) as error:
            return type(error).__name__
        store = StateStore(data / "state")
        try:
            return _seen(dict(store.scan(b"", b"\xff", limit=1_000_000)))
        finally:
            store.close()


async def _restore(root: Path, data: Path, choice: Choice) -> None:
    store = FlakyStore(root)
    cold = AsyncObjectStore(store, run_blocking=_here, random=Random(1), max_requests=4)
    try:
        await restore(
            cold,
            node_config(data),
            choice,
            run_blocking=_here,
            clock_ms=lambda: NOW_MS,
            progress=Quiet(),
            fencing=False,
        )
    finally:
        cold.close()


async def _here(
    call: Callable[[*Args], T], *args: *Args, limiter: trio.CapacityLimiter | None = None
) -> T:
    """Call it in this thread: a change of threads takes longer than what is done here."""
    await trio.lowlevel.checkpoint()
    return call(*args)


def _seen(rows: Rows) -> Rows:
    """The rows without what no client sees: a new cluster's own numbers, the names of packs, copies
    of what is in packs, how records are grouped in rows, and what is left to be removed."""
    header = decode(rows[keys.HEADER], type=Header)
    header.incarnation_base = header.flushed_bytes = 0
    found = {keys.HEADER: encode(header)}
    cold = _cold(rows)
    for key, value in rows.items():
        kind = key[:1]
        if kind in _GARBAGE or kind == keys.HEADER:
            continue
        if kind in _OF_SUBSCRIPTIONS and keys.SUBSCRIPTION + key[1:9] not in rows:
            # It was deleted.
            continue
        if kind in (keys.CHUNK, keys.BLOB_PART):
            number = keys.parse_id(key[:9])
            parts = _records(value) if kind == keys.CHUNK else {keys.parse_number(key): value}
            for record, data in parts.items():
                if record >= cold.get(number, 2**64):
                    found[key[:9] + record.to_bytes(8)] = data
            continue
        if kind == keys.PACK:
            # What a pack holds is in the digests of its slices.
            pack = decode(value, type=Pack)
            pack.name, pack.size = "", 0
            value = encode(pack)
        found[key] = value
    return found


def _cold(rows: Rows) -> dict[int, int]:
    """Of each stream and blob the record before which all are in packs."""
    found = {}
    for key, value in rows.items():
        if key[:1] == keys.STREAM:
            stream = decode(value, type=Stream)
            found[stream.stream_id] = stream.cold[0]
        elif key[:1] == keys.BLOB:
            found[keys.parse_id(key)] = decode(value, type=Blob).cold[0]
    return found


def _records(value: bytes) -> dict[int, bytes]:
    """The records of a chunk, by their numbers."""
    chunk = decode(value, type=Chunk)
    found, at = {}, 0
    for record, length in enumerate(chunk.lengths, start=chunk.start_record):
        found[record] = bytes(chunk.data[at : at + length])
        at += length
    return found
