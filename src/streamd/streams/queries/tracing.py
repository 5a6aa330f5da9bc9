"""Finds the command that appended a record: the log says what was asked for, not what came of it.

So the commands for one stream, and no others, are applied by the real machine to a state that has
nothing but this stream, until its tail passes the record. Commands for other streams keep their
places as commands that do nothing. The stream does not expire here: it is there at the end of the
log, so it never did, whatever renewed it.

The stream's own fields tell when it was created, and by which id. What it inherits as a fork comes
from a row that only stands for its source. What depends on other streams is not known here: if a
quota refused an append, the tail is passed too early, and the caller sees that by the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from streamd.streams import keys
from streamd.streams.codec import Batch, decode_batch
from streamd.streams.commands import (
    Append,
    Command,
    Create,
    Delete,
    EndProducers,
    OpenSession,
    Outcome,
    Result,
    Sweep,
)
from streamd.streams.machine import Machine
from streamd.streams.model import Bucket, ForkRequest, Settings, Stream
from streamd.streams.offsets import Position
from streamd.streams.queries.rows_in_memory import RowsInMemory
from streamd.streams.sessions import WriteSession
from streamd.streams.state import State

_NOTHING = Sweep([])
_OF_SESSIONS = b"open-session"
# No client's stream has this key: a stream's name is not empty.
_SOURCE = keys.stream_key(b"_source", b"")
_FLUSH_BYTES = 4 * 1024 * 1024


class FoundCommand(NamedTuple):
    """A command of an entry, and which of its `records` was looked for, both counted from 0.

    `data` is that record, which begins at `at` in the stream.
    """

    number: int
    record: int
    records: int
    at: Position
    data: bytes


class Trace:
    """One stream on its way through the log, up to a record."""

    def __init__(self, key: bytes, stream: Stream, record: int, incarnation_base: int) -> None:
        """`stream` has the present fields of the stream that owns the record `record`.

        Begin with the first entry of the log, with the one after rows that were loaded, or with any
        before the one that created the stream.
        """
        self._key = key
        # With its length, so that a key is not mistaken for another that it begins.
        self._packed_key = msgspec.msgpack.encode(key)
        self._stream = stream
        self._record = record
        # Whether sessions that were opened before the first entry are known.
        self._knows_sessions = False
        self._store = RowsInMemory()
        self._state = State(self._store, tail_limit_bytes=0)
        self._machine = Machine(self._state)
        self._state.header.incarnation_base = incarnation_base
        self._state.buckets.put(keys.bucket_of(key), Bucket(0, streams=1))

    def load(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take what matters of a state's rows, as of the entry before the first one to apply."""
        wanted = (keys.SESSION, keys.PRODUCER + keys.number(self._stream.stream_id))
        own = keys.STREAM + self._key
        self._knows_sessions = True
        self._store.write(row for row in rows if row[0] == own or row[0].startswith(wanted))

    def begins_before_record(self) -> bool:
        """Whether the rows that were loaded have the stream, and it ends before the record."""
        known = self._state.streams.get(self._key)
        if known is None or known.stream_id != self._stream.stream_id:
            return False
        # The rows to which these refer are not here.
        known.settings, known.snapshot, known.forks = self._own_settings, None, 0
        known.ttl_ms = known.expires_at_ms = None
        self._state.streams.put(self._key, known)
        return known.records <= self._record

    @property
    def _own_settings(self) -> Settings:
        return replace(self._stream.settings, fork=None)

    def apply(self, index: int, term: int, now_ms: int, payload: bytes) -> FoundCommand | None:
        """Apply entry `index`, which holds commands, at log time `now_ms`; returns the command
        that appended the record, if it is in there. Raises one of `UNDECODABLE`."""
        self._knows_sessions = self._knows_sessions or index == 1
        if self._packed_key not in payload and _OF_SESSIONS not in payload:
            return None
        batch = decode_batch(payload)
        commands = [self._narrowed(command, now_ms) for command in batch.commands]
        if not self._knows_sessions:
            self._guess_sessions(batch)
        header = self._state.header
        header.applied_index = index - 1
        header.next_stream_id = self._stream.stream_id
        outcomes = self._machine.apply(index, term, now_ms, commands, batch.packages)
        self._machine.take_changes()
        self._forget_bytes()
        return self._found(commands, outcomes)

    def _narrowed(self, command: Command, now_ms: int) -> Command:
        """The command, or one that does nothing if it cannot change where the stream ends."""
        match command:
            case Append(key=self._key) | Delete(key=self._key) | EndProducers(key=self._key):
                return command
            case Create(key=self._key, settings=self._stream.settings):
                return self._placed(command) if now_ms == self._stream.created_ms else _NOTHING
            case OpenSession():
                return command
            case _:
                return _NOTHING

    def _placed(self, command: Create) -> Create:
        """The command that creates the stream, as a fork of a row that has what it inherits."""
        stream, fork = self._stream, command.settings.fork
        settings = replace(command.settings, ttl_ms=None, expires_at=None, expires_at_ms=None)
        if fork is None:
            return replace(command, settings=settings, implicit_bucket=True)
        at = stream.fork_point
        source = replace(
            stream,
            settings=self._own_settings,
            ttl_ms=None,
            expires_at_ms=None,
            records=at.record,
            size=at.byte,
            forks=0,
            deleted=False,
            snapshot=None,
        )
        self._state.streams.put(_SOURCE, source)
        settings = replace(settings, fork=ForkRequest(_SOURCE))
        return replace(command, settings=settings, finding=None, implicit_bucket=True)

    def _guess_sessions(self, batch: Batch) -> None:
        """A session that was opened before the trace began is seen by its first package."""
        for stamp in batch.packages:
            key = keys.number(stamp.node_id)
            if self._state.sessions.get(key) is None:
                self._state.sessions.put(key, WriteSession(stamp.session_id, 0))

    def _found(
        self, commands: Sequence[Command], outcomes: Sequence[Outcome]
    ) -> FoundCommand | None:
        for number, (command, outcome) in enumerate(zip(commands, outcomes, strict=True)):
            if not isinstance(command, Append | Create):
                continue
            lengths, end = command.lengths, outcome.tail
            first = self._record - end.record + len(lengths)
            is_done = outcome.result in (Result.APPENDED, Result.CREATED)
            if is_done and 0 <= first < len(lengths):
                begin = sum(lengths[:first])
                at = Position(self._record, end.byte - len(command.data) + begin)
                data = command.data[begin : begin + lengths[first]]
                return FoundCommand(number, first, len(lengths), at, data)
        return None

    def _forget_bytes(self) -> None:
        """Keep the rows that later commands depend on, and no records."""
        if self._state.unstored_bytes >= _FLUSH_BYTES:
            kept = (keys.STREAM, keys.PRODUCER, keys.SESSION, keys.BUCKET)
            items = self._state.begin_flush()
            self._store.write(item for item in items if item[0].startswith(kept))
            self._state.end_flush()
