"""The content of a state, however its rows are laid out; and a cold store in a directory."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import trio

from streamd.backup.base import Choice
from streamd.backup.restore import Restored, restore
from streamd.config.settings import ColdConfig, Config, ServerConfig
from streamd.process.threads import in_thread
from streamd.raft.messages import Entry, EntryKind
from streamd.storage.log_storage import open_log
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.codec import decode_batch
from streamd.streams.machine import Machine
from streamd.streams.model import Header
from streamd.streams.state import State
from streamd.streams.tables import KeyValue
from streamd.tiering.async_store import AsyncObjectStore
from tests.streams.memory_store import MemoryStore
from tests.support.flaky_store import FlakyStore

NOW_MS = 1_700_000_000_000
_CHUNK = msgspec.msgpack.Decoder(Chunk)
_HEADER = msgspec.msgpack.Decoder(Header)
_REMOVED = (keys.GARBAGE, keys.TRIM, keys.CHUNK, keys.BLOB_PART, keys.PRODUCER, keys.DROPPED)


class Said(NamedTuple):
    """The content of a state: rows, and the records of each stream, as sizes and bytes."""

    applied_index: int
    rows: dict[bytes, bytes]
    records: dict[int, tuple[list[int], bytes]]


class Quiet:
    """Progress without output; it records the `stages`."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, name: str, total: int) -> None:
        self.stages.append(name)

    def advance(self, amount: int) -> None:
        pass


def cold_in(directory: Path) -> tuple[AsyncObjectStore, FlakyStore]:
    store = FlakyStore(directory)
    return AsyncObjectStore(store, run_blocking=in_thread, random=Random(1), max_requests=4), store


def said_by(store: KeyValue) -> Said:
    """The content of a stored state, for existing streams."""
    rows = dict(store.scan(b"", b"\xff", limit=1_000_000))
    header = _HEADER.decode(rows[keys.HEADER])
    dead = {keys.parse_id(key) for key in rows if key[:1] == keys.GARBAGE}
    records: dict[int, tuple[list[int], bytes]] = {}
    for key, value in rows.items():
        if key[:1] == keys.CHUNK and (stream_id := keys.place_in(key[1:])[0]) not in dead:
            chunk = _CHUNK.decode(value)
            lengths, data = records.get(stream_id, ([], b""))
            records[stream_id] = ([*lengths, *chunk.lengths], data + chunk.data)
    kept = {
        key: value
        for key, value in rows.items()
        if key[:1] not in (*_REMOVED, keys.HEADER, b"\0")
        or (key[:1] in (keys.PRODUCER, keys.BLOB_PART) and keys.parse_id(key[:9]) not in dead)
    }
    return Said(header.applied_index, kept, records)


def log_of(data_dir: Path) -> list[Entry]:
    """The whole log of a stopped node."""
    log = open_log(data_dir / "log", data_dir / "floor", alone=False)
    try:
        return [
            log.entries(index, index + 1, 1)[0]
            for index in range(log.first_index, log.last_index + 1)
        ]
    finally:
        log.close()


def state_after(entries: list[Entry]) -> Said:
    """The content of a machine that has applied these entries from the first on."""
    store = MemoryStore()
    state = State(store)
    machine = Machine(state)
    for entry in entries:
        batch = decode_batch(entry.payload) if entry.kind == EntryKind.COMMANDS else None
        now_ms, commands = (batch.now_ms, batch.commands) if batch else (0, [])
        machine.apply(entry.index, entry.term, now_ms, commands)
    store.write(state.begin_flush())
    state.end_flush()
    return said_by(store)


def state_in(data_dir: Path) -> Said:
    """The content of the stored state of a stopped node."""
    store = StateStore(data_dir / "state")
    try:
        return said_by(store)
    finally:
        store.close()


def header_in(data_dir: Path) -> Header:
    """The header of the stored state of a stopped node."""
    store = StateStore(data_dir / "state")
    try:
        return State(store).header
    finally:
        store.close()


def node_config(data_dir: Path, node_id: int = 1) -> Config:
    return Config(
        server=ServerConfig(data_dir=str(data_dir), node_id=node_id), cold=ColdConfig(backend="fs")
    )


async def restored(
    cold: AsyncObjectStore, data_dir: Path, choice: Choice | None = None, *, fencing: bool = True
) -> Restored:
    with trio.fail_after(60):
        return await restore(
            cold,
            node_config(data_dir),
            choice or Choice(),
            run_blocking=in_thread,
            clock_ms=lambda: NOW_MS,
            progress=Quiet(),
            fencing=fencing,
            settle_s=0,
        )
