"""The archived log, replayed through the machine into a state's store. Calls block."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from streamd.codec import UNDECODABLE, decode_batch
from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.segments import LogPlace, placed_entries_of, read_segment_head
from streamd.raft.membership import departed
from streamd.raft.messages import Entry, EntryKind
from streamd.storage.state_store import StateStore
from streamd.streams.etags import incarnation_base
from streamd.streams.machine import Machine
from streamd.streams.model import ArchivedPlace, Scrub
from streamd.streams.state import State

# Sorts before every key of the state, and is removed before the state is used.
_PROGRESS_KEY = b"\0replayed"
_PLACE_DECODER = msgspec.msgpack.Decoder(LogPlace)
_FLUSH_BYTES = 8 * 1024 * 1024
# Nobody reads meanwhile; but small streams' chunks are joined only while their ends are here.
_TAIL_LIMIT_BYTES = 32 * 1024 * 1024


class Wanted(NamedTuple):
    """Where to stop: behind entry `last_index`, and before the first entry of a log time that is
    later than `at_ms`, in milliseconds since the epoch."""

    last_index: int
    at_ms: int | None = None


class Replay:
    """A state on its way through the log.

    How far it has come is stored with it, so that it goes on there after a crash. Every call
    raises `StorageError` when the disk does not do its part.
    """

    def __init__(self, store: StateStore, wanted: Wanted, begin: LogPlace) -> None:
        """`begin` is what the state in the store is as of, unless a replay has begun already."""
        self._store = store
        self._wanted = wanted
        self._state = State(store, tail_limit_bytes=_TAIL_LIMIT_BYTES)
        self._machine = Machine(self._state)
        raw = store.get(_PROGRESS_KEY)
        self.place = begin if raw is None else _PLACE_DECODER.decode(raw)
        if self._state.header.applied_index != self.place.index:
            raise ObjectCorrupt(
                f"the state is as of entry {self._state.header.applied_index}, but the snapshot "
                f"was announced as of {self.place.index}"
            )
        self.ended = self.place.index >= wanted.last_index

    def apply(self, segment: bytes) -> None:
        """Replay what a segment adds to the state, and store it.

        Raises `ObjectCorrupt` when it is damaged, or is not of the log that was replayed so far.
        """
        head = read_segment_head(segment)
        if not head.previous.index <= self.place.index < head.last.index:
            raise ObjectCorrupt(f"a log segment leads nowhere from entry {self.place.index}")
        self._expect_here(head.previous)
        for entry, place in placed_entries_of(segment):
            if entry.index <= self.place.index:
                self._expect_here(place)
                continue
            if self._is_beyond(place):
                self.ended = True
                break
            self._apply(entry)
            self.place = place
            if self._state.unstored_bytes >= _FLUSH_BYTES:
                self._flush()
        self.ended = self.ended or self.place.index >= self._wanted.last_index
        self._flush()

    def _expect_here(self, place: LogPlace) -> None:
        """What a segment says of the entry reached must be what led there."""
        if place.index == self.place.index and (place.term, place.chain) != (
            self.place.term,
            self.place.chain,
        ):
            raise ObjectCorrupt(
                f"a log segment continues another log: entry {place.index} there is not the one "
                "that was replayed"
            )

    def _is_beyond(self, place: LogPlace) -> bool:
        at_ms = self._wanted.at_ms
        return place.index > self._wanted.last_index or (
            at_ms is not None and place.time_ms > at_ms
        )

    def _apply(self, entry: Entry) -> None:
        if entry.kind == EntryKind.COMMANDS:
            try:
                batch = decode_batch(entry.payload)
            except UNDECODABLE as error:
                raise ObjectCorrupt(
                    f"entry {entry.index} has a command that this streamd does not know: {error}"
                ) from error
            self._machine.apply(
                entry.index, entry.term, batch.now_ms, batch.commands, batch.packages
            )
        elif entry.kind == EntryKind.CONFIGURATION:
            gone = departed(self._state.header.configuration, entry.payload)
            self._machine.configure(entry.index, entry.term, entry.payload, gone)
        else:
            self._machine.apply(entry.index, entry.term, 0, [])
        self._machine.take_changes()

    def _flush(self) -> None:
        if not self._state.unstored:
            return
        items = self._state.begin_flush()
        place = msgspec.msgpack.encode(self.place)
        self._store.write([*items, (_PROGRESS_KEY, place)])
        self._state.end_flush()


def become_another(store: StateStore, cluster_id: str) -> None:
    """Make a replayed state that of a cluster of its own, which has archived nothing yet.

    What the former cluster wrote after the restored entry is given up, and other bytes will take
    its offsets: ETags of that time must match nothing.
    """
    state = State(store)
    state.header.archived = ArchivedPlace()
    state.header.scrub = Scrub()
    state.header.incarnation_base = incarnation_base(cluster_id)
    store.write([*state.begin_flush(), (_PROGRESS_KEY, None)])
