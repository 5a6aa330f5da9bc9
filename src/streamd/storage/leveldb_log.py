"""A log's rows in LevelDB, each entry with its checksum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from struct import Struct

import msgspec
from msgspec.structs import astuple

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import Entry, HardState
from streamd.storage.files import directory_bytes
from streamd.storage.journal import Mark
from streamd.storage.leveldb import open_database, translated

# The log is written in order, so its tables hardly overlap and a larger buffer saves no sorting.
# A single snapshot that an application publishes would fill a larger one twice over.
_WRITE_BUFFER_BYTES = 2 * 1024 * 1024

_KEY = Struct(">IcQ")
_ENTRY = Struct(">QBI")
_KIND_AT = 8
_BASE = Struct(">QQI")
_MARK = Struct(">QQQI")
# In the place of an entry's kind: the row ends with a mark.
_IS_MARKED = 0x80
# A mark sorts before entries, so that the tables of later ones do not overlap with its own.
_ENTRY_LETTER, _HARD_STATE_LETTER, _BASE_LETTER, _MARK_LETTER = b"e", b"h", b"b", b"J"
MAX_INDEX = 2**64 - 1

_HARD_STATE = msgspec.msgpack.Decoder(HardState)


def _is_log_key(key: bytes) -> bool:
    """Whether a log can have a row with that key."""
    return len(key) == _KEY.size and key[4:5] in (
        _ENTRY_LETTER,
        _HARD_STATE_LETTER,
        _BASE_LETTER,
        _MARK_LETTER,
    )


class LevelDBLog:
    """A `LogEngine`: the rows of one group's log in a database of their own."""

    # Nothing waits to be settled: each write is in LevelDB.
    is_filling = False
    stalled_s = 0.0

    def __init__(self, directory: Path, group_id: int, *, paranoid: bool = True) -> None:
        """See `log_engine.open_engine`."""
        self.directory = directory
        self._group_id = group_id
        self._hard_state_key = _KEY.pack(group_id, _HARD_STATE_LETTER, 0)
        self._base_key = _KEY.pack(group_id, _BASE_LETTER, 0)
        self._mark_key = _KEY.pack(group_id, _MARK_LETTER, 0)
        self._db = open_database(
            directory,
            write_buffer_size=_WRITE_BUFFER_BYTES,
            compression=None,
            paranoid=paranoid,
            is_key=_is_log_key,
        )

    def hard_state(self) -> HardState:
        """The hard state last written; the default one without any."""
        with translated(self.directory):
            raw = self._db.get(self._hard_state_key, verify_checksums=True)
        return HardState() if raw is None else _HARD_STATE.decode(raw)

    def base(self) -> ChainPosition:
        """The last entry removed from the log's beginning; index 0 without any."""
        with translated(self.directory):
            raw = self._db.get(self._base_key, verify_checksums=True)
        return ChainPosition() if raw is None else ChainPosition(*_BASE.unpack(raw))

    def mark(self) -> Mark | None:
        """Up to where in the journal these rows hold all; None when there never was a journal."""
        with (
            translated(self.directory),
            self._db.iterator(
                start=self._key(0), stop=self._key(MAX_INDEX), reverse=True, verify_checksums=True
            ) as rows,
        ):
            found = [value for _, value in islice(rows, 1) if value[_KIND_AT] & _IS_MARKED]
            own = self._db.get(self._mark_key, verify_checksums=True)
        marks = [Mark(*_MARK.unpack(raw[-_MARK.size :])) for raw in (*found, own) if raw]
        return max(marks, key=lambda mark: mark.sequence, default=None)

    def position(self, index: int) -> ChainPosition | None:
        """The position that entry `index` was written with; None without such an entry."""
        with translated(self.directory):
            value = self._db.get(self._key(index), verify_checksums=True)
        if value is None:
            return None
        term, _, chain = _ENTRY.unpack_from(value)
        return ChainPosition(index, term, chain)

    def rows(self, lo: int, hi: int) -> Iterator[tuple[Entry, ChainPosition]]:
        """The stored entries in [`lo`, `hi`) with their positions, in order."""
        with (
            translated(self.directory),
            self._db.iterator(
                start=self._key(lo), stop=self._key(hi), fill_cache=False, verify_checksums=True
            ) as rows,
        ):
            for key, value in rows:
                _, _, index = _KEY.unpack(key)
                term, kind, chain = _ENTRY.unpack_from(value)
                end = len(value)
                if kind & _IS_MARKED:
                    kind, end = kind ^ _IS_MARKED, end - _MARK.size
                entry = Entry(index, term, kind, value[_ENTRY.size : end])
                yield entry, ChainPosition(index, term, chain)

    def indexes(self, lo: int, hi: int) -> Iterator[int]:
        """The indexes of the stored entries in [`lo`, `hi`), without reading the entries."""
        with (
            translated(self.directory),
            self._db.iterator(
                start=self._key(lo),
                stop=self._key(hi),
                include_value=False,
                fill_cache=False,
                verify_checksums=True,
            ) as keys,
        ):
            for key in keys:
                yield _KEY.unpack(key)[2]

    def stored_size(self, lo: int, hi: int) -> int:
        """Approximate bytes on disk of the entries in [`lo`, `hi`)."""
        with translated(self.directory):
            return int(self._db.approximate_size(self._key(lo), self._key(hi)))

    def disk_bytes(self) -> int:
        """How much of the disk the files in the directory take."""
        return directory_bytes(self.directory)

    def free(self, end: int, max_bytes: int) -> None:
        """Give back the disk space of removed entries before `end`, about `max_bytes` of it.

        LevelDB by itself does not. Tables of a log hardly overlap, so it moves them to the deeper
        levels unchanged, and the few markers of their deletion never reach them there.
        """
        low = 0
        if self.stored_size(0, end) > max_bytes:
            while end - low > 1:
                middle = (low + end) // 2
                if self.stored_size(0, middle) > max_bytes:
                    end = middle
                else:
                    low = middle
        with translated(self.directory):
            self._db.compact_range(start=self._key(0), stop=self._key(end))

    def write(
        self,
        entries: Sequence[tuple[Entry, ChainPosition]],
        hard_state: HardState | None = None,
        *,
        replaced: range = range(0),
    ) -> None:
        """Put entries and hard state in place of the entries `replaced`; synced."""
        self.store(removed=replaced, entries=entries, hard_state=hard_state)

    def settle(self) -> None:
        """Do nothing."""

    def begin_after(self, base: ChainPosition) -> None:
        """Let the log begin after `base`, synced."""
        self.store(base=base)

    def restart_after(self, base: ChainPosition) -> None:
        """Remove all entries after `base` and begin after it, synced."""
        self.store(removed=self.indexes(base.index + 1, MAX_INDEX), base=base)

    def remove(self, indexes: Sequence[int]) -> None:
        """Remove entries before the base."""
        self.store(removed=indexes)

    def store(
        self,
        *,
        removed: Iterable[int] = (),
        entries: Sequence[tuple[Entry, ChainPosition]] = (),
        hard_state: HardState | None = None,
        base: ChainPosition | None = None,
        mark: Mark | None = None,
    ) -> None:
        """Remove entries, then put entries and the other rows: all or nothing, and synced.

        The mark becomes part of the last entry. In a row of its own it would make the key ranges of
        all tables overlap, and LevelDB write every entry twice more to sort them.
        """
        with translated(self.directory):
            batch = self._db.write_batch(sync=True)
            for index in removed:
                batch.delete(self._key(index))
            packed_mark = b"" if mark is None else _MARK.pack(*astuple(mark))
            for entry, position in entries:
                kind, end = entry.kind, b""
                if packed_mark and entry is entries[-1][0]:
                    kind, end = kind | _IS_MARKED, packed_mark
                head = _ENTRY.pack(entry.term, kind, position.chain)
                batch.put(self._key(entry.index), head + entry.payload + end)
            if hard_state is not None:
                batch.put(self._hard_state_key, msgspec.msgpack.encode(hard_state))
            if base is not None:
                batch.put(self._base_key, _BASE.pack(base.index, base.term, base.chain))
            if packed_mark and not entries:
                batch.put(self._mark_key, packed_mark)
            batch.write()

    def close(self) -> None:
        """Release the directory; a repetition does nothing."""
        self._db.close()

    def _key(self, index: int) -> bytes:
        return _KEY.pack(self._group_id, _ENTRY_LETTER, index)
