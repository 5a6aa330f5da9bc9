"""A backup of a running node that has no cold store: its state as a checkpoint, object by object.

The node opens a view of its stored state and hands out what a leader would put into a cold store:
pieces of rows, then the manifest that makes them a checkpoint, then a pointer to the archive's end.
A client keeps them in a directory, which a restore reads like any other store. The view does not
change, whatever is written meanwhile, so all pieces are of one log entry.

One backup is under way at a time, because a view keeps removed rows on disk; and one that nobody
asks about for `IDLE_S` ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import msgspec
import trio

from streamd.group.group import Group
from streamd.group.proposals import Unavailable
from streamd.objectstore.checkpoints import CheckpointOf, CheckpointWriter
from streamd.objectstore.ends import ArchiveEnd, make_end
from streamd.objectstore.names import NamedObject
from streamd.process.threads import RunBlocking
from streamd.storage.raft_snapshots import SnapshotSource, SnapshotUnavailable
from streamd.streams.model import LogPosition

IDLE_S = 60.0
# Marks a directory whose backup is incomplete; no object has such a name.
UNFINISHED = ".unfinished"
# The rows in an object, before compression: an answer over HTTP is held in memory whole.
_PIECE_BYTES = 4 * 1024 * 1024


class BackupInProgress(Exception):
    """Another backup of this node is under way."""


class NoSuchBackup(Exception):
    """The backup has ended, or the object is neither the last one nor the next."""


class Begun(msgspec.Struct, frozen=True):
    """A backup, by its id, of what the cluster had after log entry `index`, at log time
    `time_ms`."""

    backup: str
    cluster_id: str
    index: int
    time_ms: int


class SavedObject(msgspec.Struct, frozen=True):
    """An object of a cluster's folder; the backup is whole with the one that `is_last`."""

    name: str
    content: bytes
    is_last: bool


class Saver:
    """The backups of a node. `spawn` starts a task that lives as long as the node."""

    def __init__(
        self,
        group: Group,
        cluster_id: Callable[[], str],
        *,
        run_blocking: RunBlocking,
        random: Random,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._group = group
        self._cluster_id = cluster_id
        self._run_blocking = run_blocking
        self._random = random
        self._spawn = spawn
        self._lock = trio.Lock()
        self._open: _Backup | None = None

    async def begin(self) -> Begun:
        """Open a view of everything that was acknowledged before the call.

        Raises `BackupInProgress`, `Unavailable`, `StorageError`.
        """
        async with self._lock:
            if self._open is not None:
                raise BackupInProgress
            await self._group.reads.catch_up()
            await self._group.storage.flush()
            try:
                source = await self._group.storage.open_snapshot(self._random.getrandbits(64))
            except SnapshotUnavailable as gone:
                raise Unavailable(str(gone)) from gone
            name = f"{self._random.getrandbits(128):032x}"
            opened = _Backup(name, source, self._cluster_id(), self._group.group_id)
            self._open = opened
        self._spawn(partial(self._end_idle, opened))
        return opened.begun

    async def object(self, backup: str, number: int) -> SavedObject:
        """Object `number` of a backup: the next one, or the last one again.

        Raises `NoSuchBackup`, `StorageError`.
        """
        async with self._lock:
            opened = self._of(backup)
            opened.used_at = trio.current_time()
            try:
                return await self._run_blocking(opened.object, number)
            except SnapshotUnavailable as gone:
                raise NoSuchBackup from gone

    async def end(self, backup: str) -> None:
        """End a backup. Raises `NoSuchBackup`."""
        async with self._lock:
            await self._close(self._of(backup))

    def _of(self, backup: str) -> _Backup:
        if self._open is None or self._open.begun.backup != backup:
            raise NoSuchBackup
        return self._open

    async def _end_idle(self, opened: _Backup) -> None:
        """End the backup once nobody asks about it, or with the node."""
        try:
            while opened is self._open:
                await trio.sleep_until(opened.used_at + IDLE_S)
                if trio.current_time() >= opened.used_at + IDLE_S:
                    break
        finally:
            with trio.CancelScope(shield=True):
                async with self._lock:
                    await self._close(opened)

    async def _close(self, opened: _Backup) -> None:
        if opened is self._open:
            self._open = None
            await self._run_blocking(opened.close)


class _Backup:
    """A view, and how far it was handed out. `object` blocks."""

    def __init__(self, name: str, source: SnapshotSource, cluster_id: str, group_id: int) -> None:
        meta = source.meta
        at = LogPosition(meta.index, meta.term, meta.chain, source.log_ms)
        self.begun = Begun(name, cluster_id, at.index, at.time_ms)
        self.used_at = trio.current_time()
        self.close = source.close
        self._source = source
        self._end = make_end(ArchiveEnd(cluster_id, group_id, at))
        self._writer = CheckpointWriter(
            CheckpointOf(
                cluster_id, group_id, at.index, at.term, at.chain, at.time_ms,
                meta.snapshot_id, meta.configuration,
            )
        )  # fmt: skip
        # The next piece of the source, None after the last one.
        self._next_piece: int | None = 0
        self._has_manifest = False
        self._last: tuple[int, SavedObject] | None = None

    def object(self, number: int) -> SavedObject:
        """Raises `NoSuchBackup` for a number that is not due, `SnapshotUnavailable`."""
        before = -1 if self._last is None else self._last[0]
        if self._last is not None and number == before:
            return self._last[1]
        if number != before + 1 or (self._last is not None and self._last[1].is_last):
            raise NoSuchBackup
        is_last = self._has_manifest
        made = SavedObject(*self._make(), is_last)
        self._last = number, made
        return made

    def _make(self) -> NamedObject:
        if self._next_piece is not None:
            return self._writer.piece(self._rows())
        if not self._has_manifest:
            self._has_manifest = True
            return self._writer.manifest()
        return self._end

    def _rows(self) -> bytes:
        gathered: list[bytes] = []
        size = 0
        while self._next_piece is not None and size < _PIECE_BYTES:
            piece = self._source.piece(self._next_piece)
            gathered.append(piece.rows)
            size += len(piece.rows)
            self._next_piece = None if piece.is_last else self._next_piece + 1
        return b"".join(gathered)
