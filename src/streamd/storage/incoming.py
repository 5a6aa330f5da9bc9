"""A Raft snapshot being received, in a directory of its own until it is complete.

The synced write that stores a piece's rows also stores the number of the next piece, so the
transfer continues where it stopped, even after a crash.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from streamd.storage.binding import plyvel
from streamd.storage.errors import LogCorrupt, StorageError
from streamd.storage.files import is_there, sync_directory
from streamd.storage.leveldb import LevelDBFailStop
from streamd.storage.raft_snapshots import SnapshotMeta, SnapshotPiece, piece_crc, put_rows
from streamd.storage.state_store import StateStore, open_state_database
from streamd.streams import keys
from streamd.streams.content import UNDECODABLE
from streamd.streams.model import Header

# Sorts before every key of the state; deleted before the rows are used.
_PROGRESS_KEY = b"\0incoming"


class SnapshotDamaged(Exception):
    """The bytes received are not the ones that were sent. None of them was kept."""


def check_installed(state: StateStore) -> None:
    """Raises `LogCorrupt` for the state of a Raft snapshot that has since lost its end."""
    if state.get(_PROGRESS_KEY) is not None:
        raise LogCorrupt("the state is damaged: its Raft snapshot is incomplete")


class _Progress(msgspec.Struct, array_like=True):
    """`wanted` is the next piece; a snapshot that `is_complete` wants none."""

    meta: SnapshotMeta
    wanted: int = 0
    is_complete: bool = False


_PROGRESS_DECODER = msgspec.msgpack.Decoder(_Progress)
_HEADER_DECODER = msgspec.msgpack.Decoder(Header)


class SnapshotSink:
    """Receives one snapshot at a time. Calls block; a `StorageError` ends the sink."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fail_stop = LevelDBFailStop(directory)
        self._db: plyvel.DB | None = None
        self._progress: _Progress | None = None
        # The beginning of a row that is larger than a piece.
        self._begun_row = bytearray()
        self._wanted = 0

    @property
    def is_complete(self) -> bool:
        """Whether all pieces have arrived, so that `finish` is next."""
        return self._progress is not None and self._progress.is_complete

    def begin(self, meta: SnapshotMeta) -> int:
        """Receive this snapshot; returns the number of the next piece wanted.

        Continues with what an earlier attempt left of it, and removes what another snapshot left.
        """
        if self._progress is None or self._progress.meta != meta:
            self.close()
            with self._fail_stop:
                self._resume(meta)
        return self._wanted

    def take(self, piece: SnapshotPiece) -> int:
        """Keep a piece, durably; returns the number of the next one wanted.

        A piece other than the one wanted changes nothing. Raises `SnapshotDamaged` for a piece that
        was altered on the way; it is then still wanted.
        """
        progress, db = self._progress, self._db
        assert progress is not None, "no snapshot was begun"
        assert db is not None
        if progress.is_complete or piece.number != self._wanted:
            return self._wanted
        if piece.crc != piece_crc(progress.meta, piece.number, piece.rows, piece.is_last):
            raise SnapshotDamaged(f"piece {piece.number} of the snapshot was damaged on its way")
        with self._fail_stop:
            self._put(db, progress, piece)
        return self._wanted

    def finish(self) -> SnapshotMeta:
        """Make the complete snapshot ready to install; returns its description.

        Raises `SnapshotDamaged` when the rows are not those of the state that was announced.
        """
        progress, db = self._progress, self._db
        assert progress is not None, "no snapshot was begun"
        assert progress.is_complete
        assert db is not None
        with self._fail_stop:
            raw = db.get(keys.HEADER, verify_checksums=True)
            header = Header() if raw is None else _HEADER_DECODER.decode(raw)
            meta = progress.meta
            if (header.applied_index, header.configuration) != (meta.index, meta.configuration):
                self._discard()
                raise SnapshotDamaged(
                    f"the snapshot was announced as of entry {meta.index}, "
                    f"but is of {header.applied_index}"
                )
            batch = db.write_batch(sync=True)
            batch.delete(_PROGRESS_KEY)
            batch.write()
            self.close()
            sync_directory(self._directory)
        return meta

    def discard(self) -> None:
        """Remove everything received so far."""
        with self._fail_stop:
            self._discard()

    def close(self) -> None:
        """Stop receiving, but keep what is there: `begin` may continue it."""
        if self._db is not None:
            self._db.close()
        self._db = self._progress = None

    def _discard(self) -> None:
        self.close()
        if is_there(self._directory):
            shutil.rmtree(self._directory)

    def _resume(self, meta: SnapshotMeta) -> None:
        progress = None
        # The sender sends again what cannot be read.
        with suppress(StorageError, plyvel.Error, *UNDECODABLE):
            self._db = open_state_database(self._directory)
            raw = self._db.get(_PROGRESS_KEY, verify_checksums=True)
            progress = None if raw is None else _PROGRESS_DECODER.decode(raw)
        if progress is None or progress.meta != meta or self._db is None:
            self._discard()
            self._db = open_state_database(self._directory)
            progress = _Progress(meta)
            self._db.put(_PROGRESS_KEY, msgspec.msgpack.encode(progress), sync=True)
        self._progress = progress
        self._wanted = progress.wanted
        self._begun_row.clear()

    def _put(self, db: plyvel.DB, progress: _Progress, piece: SnapshotPiece) -> None:
        """Store the piece's rows. An incomplete row waits in memory: after a restart the transfer
        continues with the piece in which that row begins."""
        batch = db.write_batch(sync=True)
        if self._begun_row:
            self._begun_row += piece.rows
            del self._begun_row[: put_rows(batch, self._begun_row)]
        else:
            self._begun_row += piece.rows[put_rows(batch, piece.rows) :]
        if self._begun_row and piece.is_last:
            self._discard()
            raise SnapshotDamaged("the snapshot ends inside a row")
        self._wanted += 1
        if not self._begun_row:
            progress.wanted, progress.is_complete = self._wanted, piece.is_last
            batch.put(_PROGRESS_KEY, msgspec.msgpack.encode(progress))
        batch.write()
