"""Replays the archived log through the machine into a state's store. Calls block."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.segments import (
    PositionFields,
    named_fields,
    read_entries,
    read_segment_head,
)
from streamd.raft.membership import departed
from streamd.raft.messages import Entry, EntryKind
from streamd.storage.state_store import StateStore
from streamd.streams.codec import decode_batch
from streamd.streams.cold.scrubs import Scrub
from streamd.streams.content import UNDECODABLE
from streamd.streams.etags import incarnation_base
from streamd.streams.machine import Machine
from streamd.streams.model import LogPosition
from streamd.streams.state import State

# Sorts before every key of the state; deleted before the state is used.
_PROGRESS_KEY = b"\0replayed"
_PROGRESS_DECODER = msgspec.msgpack.Decoder(PositionFields)
_FLUSH_BYTES = 8 * 1024 * 1024
# There are no readers meanwhile; but small streams' chunks are joined only while their ends are in
# memory.
_TAIL_LIMIT_BYTES = 32 * 1024 * 1024


class Wanted(NamedTuple):
    """Where to stop: after entry `last_index`, and before the first entry with a log time later
    than `at_ms`, in milliseconds since the epoch."""

    last_index: int
    at_ms: int | None = None


class Replay:
    """A state on its way through the log.

    Its progress is stored with it, so that it continues from there after a crash. Every call
    raises `StorageError` when the disk fails.
    """

    def __init__(self, store: StateStore, wanted: Wanted, begin: LogPosition) -> None:
        """`begin` is the position of the state in the store, unless a replay has already begun."""
        self._store = store
        self._wanted = wanted
        self._state = State(store, tail_limit_bytes=_TAIL_LIMIT_BYTES)
        self._machine = Machine(self._state)
        raw = store.get(_PROGRESS_KEY)
        self.position = begin if raw is None else LogPosition(**_PROGRESS_DECODER.decode(raw))
        if self._state.header.applied_index != self.position.index:
            raise ObjectCorrupt(
                f"the state is as of entry {self._state.header.applied_index}, but the checkpoint "
                f"was announced as of {self.position.index}"
            )
        self.ended = self.position.index >= wanted.last_index

    def apply(self, segment: bytes) -> None:
        """Replay a segment into the state, and store it.

        Raises `ObjectCorrupt` when it is damaged, or does not continue the log replayed so far.
        """
        head = read_segment_head(segment)
        if not head.previous.index <= self.position.index < head.last.index:
            raise ObjectCorrupt(f"no log segment continues from entry {self.position.index}")
        self._expect_here(head.previous)
        for entry, position in read_entries(segment):
            if entry.index <= self.position.index:
                self._expect_here(position)
                continue
            if self._is_beyond(position):
                self.ended = True
                break
            self._apply(entry)
            self.position = position
            assert self._state.header.applied_index == position.index
            if self._state.unstored_bytes >= _FLUSH_BYTES:
                self._flush()
        self.ended = self.ended or self.position.index >= self._wanted.last_index
        self._flush()

    def _expect_here(self, position: LogPosition) -> None:
        """A segment's view of the entry reached so far must match the replay."""
        if position.index == self.position.index and (position.term, position.chain) != (
            self.position.term,
            self.position.chain,
        ):
            raise ObjectCorrupt(
                f"a log segment continues another log: its entry {position.index} does not match "
                "the entry that was replayed"
            )

    def _is_beyond(self, position: LogPosition) -> bool:
        at_ms = self._wanted.at_ms
        return position.index > self._wanted.last_index or (
            at_ms is not None and position.time_ms > at_ms
        )

    def _apply(self, entry: Entry) -> None:
        if entry.kind == EntryKind.COMMANDS:
            try:
                batch = decode_batch(entry.payload)
            except UNDECODABLE as error:
                raise ObjectCorrupt(
                    f"entry {entry.index} has a command that this release does not know: {error}"
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
        progress = msgspec.msgpack.encode(named_fields(self.position))
        self._store.write([*items, (_PROGRESS_KEY, progress)])
        self._state.end_flush()


def become_another(store: StateStore, cluster_id: str, *, group_id: int = 0) -> None:
    """Make a replayed state that of a new cluster, which has archived nothing yet.

    What the former cluster wrote after the restored entry is abandoned, and other bytes will get
    its offsets: ETags of that time must match nothing.
    """
    state = State(store)
    state.header.archived = LogPosition()
    state.header.scrub = Scrub()
    state.become_another(incarnation_base(group_id, cluster_id))
    store.write([*state.begin_flush(), (_PROGRESS_KEY, None)])
