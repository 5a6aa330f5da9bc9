"""A Raft snapshot on its way to another node: the state's rows, cut into numbered pieces.

A piece holds as many whole rows as fit; a row larger than a piece starts a piece of its own and
continues in the next. Replicas at the same log index may lay out their rows differently, so pieces
of two snapshots must never be mixed: each snapshot has an id, and every piece's checksum covers it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Protocol

import msgspec
from crc32c import crc32c

from streamd.storage.binding import plyvel
from streamd.storage.log_storage import LogStorage
from streamd.storage.state_store import StateStore, StateView, ViewGone
from streamd.streams import keys
from streamd.streams.model import Header

PIECE_BYTES = 2 * 1024 * 1024

_ROW = Struct(">II")
_PIECE = Struct(">QQ?")
_HEADER_DECODER = msgspec.msgpack.Decoder(Header)


class SnapshotMeta(msgspec.Struct, frozen=True, array_like=True):
    """The state that a snapshot holds: the log up to `index`, and the membership as of then.

    `chain` is the log's checksum at `index`. `snapshot_id` tells this snapshot from every other,
    including others of the same index.
    """

    index: int
    term: int
    chain: int
    configuration: bytes
    snapshot_id: int


class SnapshotPiece(msgspec.Struct, frozen=True, array_like=True):
    """Part of a snapshot's rows; `number` counts from 0."""

    number: int
    crc: int
    rows: bytes
    is_last: bool


class SnapshotUnavailable(Exception):
    """The snapshot does not exist, or no longer does. Begin a new one."""


class _Start(msgspec.Struct, frozen=True):
    """Where a piece begins: at a row's key, `offset` bytes into the row."""

    key: bytes
    offset: int


class SnapshotSource:
    """A snapshot that is read piece by piece. Calls block."""

    def __init__(self, view: View, meta: SnapshotMeta, log_ms: int = 0) -> None:
        """`log_ms` is the log's time as of the snapshot, in milliseconds since the epoch."""
        self.meta = meta
        self.log_ms = log_ms
        self._view = view
        self._starts = [_Start(b"", 0)]

    @classmethod
    def open(
        cls, state: StateStore, log: LogStorage, snapshot_id: int, only_hot: bool = False
    ) -> SnapshotSource:
        """A view of the state stored now. Close it: until then its old rows take up disk space.

        With `only_hot` it leaves out records that are in the cold store.

        Call it on the log's thread, so that the log is not cut meanwhile. `snapshot_id` is a random
        64-bit number. Raises `SnapshotUnavailable` while nothing is stored, `StorageError`.
        """
        view = state.view()
        try:
            raw = view.get(keys.HEADER)
            if raw is None:
                raise SnapshotUnavailable("nothing is stored yet")
            header = _HEADER_DECODER.decode(raw)
            place = log.position(header.applied_index)
            meta = SnapshotMeta(
                place.index, place.term, place.chain, header.configuration, snapshot_id
            )
            return cls(HotRows(view) if only_hot else view, meta, header.log_ms)
        except BaseException:
            view.close()
            raise

    def piece(self, number: int) -> SnapshotPiece:
        """Piece `number`: any that was asked for before, or the one after them.

        Raises `SnapshotUnavailable` for any other, and if the state was replaced meanwhile;
        `StorageError` when the rows cannot be read.
        """
        if not 0 <= number < len(self._starts):
            raise SnapshotUnavailable(f"the snapshot has no piece {number} yet")
        try:
            rows, next_start = self._cut(self._starts[number])
        except ViewGone as gone:
            raise SnapshotUnavailable(str(gone)) from gone
        if next_start is not None and number + 1 == len(self._starts):
            self._starts.append(next_start)
        is_last = next_start is None
        return SnapshotPiece(number, piece_crc(self.meta, number, rows, is_last), rows, is_last)

    def close(self) -> None:
        self._view.close()

    def _cut(self, start: _Start) -> tuple[bytes, _Start | None]:
        """The bytes of the piece that begins at `start`, and where the next one begins."""
        parts: list[bytes] = []
        size, offset = 0, start.offset
        with self._view.rows(start.key) as rows:
            for key, value in rows:
                row = _ROW.pack(len(key), len(value)) + key + value
                rest = row[offset:] if offset else row
                if size + len(rest) <= PIECE_BYTES:
                    parts.append(rest)
                    size += len(rest)
                    offset = 0
                elif parts:
                    return b"".join(parts), _Start(key, 0)
                else:
                    return rest[:PIECE_BYTES], _Start(key, offset + PIECE_BYTES)
        return b"".join(parts), None


def piece_crc(meta: SnapshotMeta, number: int, rows: bytes, is_last: bool) -> int:
    """The checksum of a piece, which also names its snapshot and its number."""
    return crc32c(rows, crc32c(_PIECE.pack(meta.snapshot_id, number, is_last)))


def put_rows(batch: plyvel.WriteBatch, data: bytes | bytearray) -> int:
    """Put the whole rows at the beginning of `data`; returns their size in bytes."""
    used = 0
    for key, value, end in whole_rows(data):
        batch.put(key, value)
        used = end
    return used


def whole_rows(data: bytes | bytearray) -> Iterator[tuple[bytes, bytes, int]]:
    """The whole rows at the beginning of `data`, as key and value, and where each ends."""
    at = 0
    while len(data) - at >= _ROW.size:
        key_size, value_size = _ROW.unpack_from(data, at)
        value_at = at + _ROW.size + key_size
        at, start = value_at + value_size, at + _ROW.size
        if at > len(data):
            return
        yield bytes(data[start:value_at]), bytes(data[value_at:at]), at


class View(Protocol):
    """A state's rows as of one moment."""

    def get(self, key: bytes) -> bytes | None: ...

    @contextmanager
    def rows(self, start: bytes) -> Iterator[Iterator[tuple[bytes, bytes]]]: ...

    def close(self) -> None: ...


class HotRows:
    """A view that leaves out the chunks and parts that end within their id's slices, because the
    cold store has them too; and what describes one node's own rows: which of them it has evicted.

    Slices of an id have no gaps, so whatever ends before the end of one is in the cold store.
    """

    def __init__(self, view: StateView) -> None:
        self._view = view
        # The end of one slice of one id: rows that end before it need no lookup.
        self._covered = (0, 0)

    def get(self, key: bytes) -> bytes | None:
        return self._view.get(key)

    @contextmanager
    def rows(self, start: bytes) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        with self._view.rows(start) as rows:
            yield (row for row in rows if not self._is_cold(row[0]))

    def close(self) -> None:
        self._view.close()

    def _is_cold(self, key: bytes) -> bool:
        letter = key[:1]
        if letter == keys.DROPPED:
            return True
        if letter not in (keys.CHUNK, keys.BLOB_PART):
            return False
        owner_id, last = _ids(key)
        # A chunk's key holds the number after its last record; a part is one record and holds its
        # own.
        end = last if letter == keys.CHUNK else last + 1
        covered_id, covered_end = self._covered
        if covered_id != owner_id or end > covered_end:
            self._covered = (owner_id, self._slice_end(owner_id, end))
        return end <= self._covered[1]

    def _slice_end(self, owner_id: int, record: int) -> int:
        """The end of the slice in which `record`, or what follows it, ends; 0 if there is none."""
        with self._view.rows(keys.slice_key(owner_id, record)) as rows:
            for key, _ in rows:
                found_id, end = _ids(key) if key[:1] == keys.SLICE else (0, 0)
                if found_id == owner_id:
                    return end
                break
        return 0


def _ids(key: bytes) -> tuple[int, int]:
    """The two numbers after the letter of a key."""
    owner_id, last = keys.place_in(key[1:])
    return int(owner_id), int(last)
