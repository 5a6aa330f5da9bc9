"""Entries of the log as columns: one row for each command, built a batch at a time.

A batch costs a few passes over its commands for each requested column, and nothing for the other
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import chain as end_to_end
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from streamd_audit.commands import (
    Append,
    BeginUpload,
    Command,
    Create,
    Delete,
    DropSlices,
    Package,
    PublishSnapshot,
    StorePart,
    head_of,
    kind_of,
)
from streamd_audit.framing import Buffer
from streamd_audit.segments import KIND_NAMES
from streamd_audit.sources.filters import Filters

# By exact type: a lookup costs a third of `isinstance`, and there are millions.
_KEYED = frozenset((Create, Append, Delete, BeginUpload, PublishSnapshot))
_BRINGING = frozenset((Create, Append, StorePart, PublishSnapshot))
_CUT = frozenset((Create, Append))
_NO_STREAM = (None, None)
_PACKAGE = tuple(Package.__struct_fields__)

Numbers = np.ndarray[Any, np.dtype[Any]]


class LogEntry(msgspec.Struct, gc=False):
    """An entry with its commands, and its payload if it holds none.

    `stamp_ms` is its batch's clock, None if there is no batch; `log_ms` the log's time as of it.
    `problem` says what is wrong with it.
    """

    index: int
    term: int
    kind: int
    chain: int
    log_ms: int
    stamp_ms: int | None = None
    commands: list[Command] = []
    packages: list[Package] = []
    payload: bytes = b""
    problem: str | None = None

    @property
    def kind_name(self) -> str:
        return KIND_NAMES.get(self.kind, "unknown")


class LogRows:
    """The rows of some entries: the commands that the filters let through.

    An entry without commands has one row, whose command is None.
    """

    def __init__(self, entries: Sequence[LogEntry], filters: Filters) -> None:
        self.entries = entries
        self._counts = np.array([len(entry.commands) or 1 for entry in entries], np.int64)
        # Commands, or None. The tables above say which fields they have.
        self.commands: list[Any] = list(
            end_to_end.from_iterable(entry.commands or (None,) for entry in entries)
        )
        self._chosen: Numbers | None = None
        if any(column in filters for column in ("kind", "bucket", "stream", "stream_id")):
            self._choose(filters)

    def __len__(self) -> int:
        return len(self.commands)

    def column(self, name: str) -> Any:
        """One column, as an array or a list."""
        return _COLUMNS[name](self)

    # -- of entries -----------------------------------------------------------------------------

    @cached_property
    def _entry_of(self) -> Numbers:
        """The number of each row's entry."""
        return self._picked(np.repeat(np.arange(len(self.entries)), self._counts))

    def of_entry(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """A value for each entry, repeated for all of its commands."""
        return pa.array(values, kind).take(pa.array(self._entry_of))

    def positions(self) -> pa.Array:
        starts = np.cumsum(self._counts) - self._counts
        at = np.arange(int(self._counts.sum())) - np.repeat(starts, self._counts)
        return pa.array(self._picked(at), pa.int32())

    def packages(self) -> pa.Array:
        """The package that each command came in; the commands of a batch end with them."""
        total = int(self._counts.sum())
        fields = np.zeros((len(_PACKAGE), total), np.int64)
        absent = np.ones(total, bool)
        end = 0
        for entry, count in zip(self.entries, self._counts.tolist(), strict=True):
            begin, end = end, end + count
            at = end - sum(package.count for package in entry.packages)
            for package in entry.packages:
                until = at + package.count
                # Packages may claim more commands than there are.
                span = slice(max(at, begin), max(until, begin))
                for values, name in zip(fields, _PACKAGE, strict=True):
                    values[span] = getattr(package, name)
                absent[span] = False
                at = until
        return pa.StructArray.from_arrays(
            [pa.array(self._picked(values)) for values in fields],
            names=list(_PACKAGE),
            mask=pa.array(self._picked(absent)),
        )

    def _picked(self, values: Numbers) -> Numbers:
        return values if self._chosen is None else values[self._chosen]

    # -- of commands ----------------------------------------------------------------------------

    def kinds(self) -> list[str]:
        """The commands' tags; for an entry without commands, the kind of the entry."""
        known: dict[type[Any], str] = {}
        found: list[str] = []
        for row, command in enumerate(self.commands):
            kind = known.get(type(command))
            if command is None:
                kind = self.entries[self._entry_of[row]].kind_name
            elif kind is None:
                kind = known[type(command)] = kind_of(command)
            found.append(kind)
        return found

    @cached_property
    def streams(self) -> list[tuple[str | None, str | None]]:
        """Bucket and name of the stream that each command is about."""
        known: dict[bytes, tuple[str | None, str | None]] = {}
        found: list[tuple[str | None, str | None]] = []
        for command in self.commands:
            if type(command) not in _KEYED:
                found.append(_NO_STREAM)
                continue
            pair = known.get(command.key)
            if pair is None:
                pair = known[command.key] = split_key(command.key)
            found.append(pair)
        return found

    def stream_ids(self) -> list[int | None]:
        return [
            command.stream_id if type(command) is DropSlices else None for command in self.commands
        ]

    @cached_property
    def data(self) -> list[Buffer | None]:
        # Kept, because making the heads takes the data away.
        return [command.data if type(command) in _BRINGING else None for command in self.commands]

    @cached_property
    def lengths(self) -> list[list[int] | None]:
        """The sizes of the records that commands bring; a part of a body is one record."""
        found: list[list[int] | None] = []
        for command, data in zip(self.commands, self.data, strict=True):
            if type(command) in _CUT:
                found.append(command.lengths)
            else:
                found.append(None if data is None else [len(data)] if len(data) else [])
        return found

    def digests(self) -> list[bytes | None]:
        return [
            None if data is None else digests_of(data, lengths or ())
            for data, lengths in zip(self.data, self.lengths, strict=True)
        ]

    def heads(self) -> list[Buffer | None]:
        """Each command without its data, in MessagePack; what an entry without commands holds."""
        assert self.data is not None  # taken before it is gone
        return [
            self.entries[self._entry_of[row]].payload if command is None else head_of(command)
            for row, command in enumerate(self.commands)
        ]

    def producers(self) -> list[tuple[str, int, int] | None]:
        return [
            (command.producer.producer_id, command.producer.epoch, command.producer.seq)
            if type(command) is Append and command.producer is not None
            else None
            for command in self.commands
        ]

    def closes(self) -> list[bool | None]:
        """Whether the stream is to be closed, for commands that can say so."""
        return [
            command.close
            if type(command) is Append
            else command.closed
            if type(command) is Create
            else None
            for command in self.commands
        ]

    def sequences(self) -> list[str | None]:
        return [command.seq if type(command) is Append else None for command in self.commands]

    def _choose(self, filters: Filters) -> None:
        admits = filters.admits
        rows = zip(self.kinds(), self.streams, self.stream_ids(), strict=True)
        chosen = [
            row
            for row, (kind, (bucket, stream), stream_id) in enumerate(rows)
            if admits("kind", kind)
            and admits("bucket", bucket)
            and admits("stream", stream)
            and admits("stream_id", stream_id)
        ]
        self.commands = [self.commands[row] for row in chosen]
        self._chosen = np.array(chosen, np.int64)
        # Both were made of all commands.
        for cached in ("streams", "_entry_of"):
            self.__dict__.pop(cached, None)


def split_key(key: bytes) -> tuple[str | None, str | None]:
    """Bucket and name in a stream's key; other bytes, such as a blob's, have neither."""
    bucket, _, name = key.partition(b"\0")
    if not bucket or not name:
        return None, None
    return bucket.decode("utf-8", "replace"), name.decode("utf-8", "replace")


def digests_of(data: Buffer, lengths: Sequence[int]) -> bytes:
    """Of each record the first half of its SHA-256, end to end."""
    if len(lengths) == 1 and lengths[0] == len(data):
        return sha256(data).digest()[:16]
    view = memoryview(data)
    found = []
    at = 0
    for length in lengths:
        found.append(sha256(view[at : at + length]).digest()[:16])
        at += length
    return b"".join(found)


def binary(values: Sequence[Buffer | None]) -> pa.Array:
    """A column of bytes, copied in one piece whatever kind of buffers they are in."""
    sizes = [0 if value is None else len(value) for value in values]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    content = b"".join([value for value in values if value is not None])
    present = np.array([value is not None for value in values], bool)
    validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(sizes), [validity, pa.py_buffer(offsets.tobytes()), pa.py_buffer(content)]
    )


def _entries(name: str, kind: pa.DataType) -> Callable[[LogRows], pa.Array]:
    return lambda rows: rows.of_entry([getattr(entry, name) for entry in rows.entries], kind)


def _counts(lists: Sequence[Any]) -> list[int | None]:
    return [None if one is None else len(one) for one in lists]


_COLUMNS: dict[str, Callable[[LogRows], Any]] = {
    "index": _entries("index", pa.int64()),
    "term": _entries("term", pa.int64()),
    "entry_kind": _entries("kind_name", pa.string()),
    "log_ms": _entries("log_ms", pa.int64()),
    "stamp_ms": _entries("stamp_ms", pa.int64()),
    "chain": _entries("chain", pa.int64()),
    "position": LogRows.positions,
    "commands": lambda rows: rows.of_entry(_counts([e.commands for e in rows.entries]), pa.int32()),
    "kind": LogRows.kinds,
    "bucket": lambda rows: [bucket for bucket, _ in rows.streams],
    "stream": lambda rows: [stream for _, stream in rows.streams],
    "stream_id": LogRows.stream_ids,
    "records": lambda rows: _counts(rows.lengths),
    "bytes": lambda rows: _counts(rows.data),
    "lengths": lambda rows: rows.lengths,
    "payload": lambda rows: binary(rows.data),
    "digests": LogRows.digests,
    "producer": LogRows.producers,
    "close": LogRows.closes,
    "seq": LogRows.sequences,
    "package": LogRows.packages,
    "head": LogRows.heads,
    "problem": _entries("problem", pa.string()),
}
