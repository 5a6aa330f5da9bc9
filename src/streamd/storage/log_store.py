"""The Raft log on disk: hard state and entries, checksummed in a chain.

Each entry's checksum covers the one before it, so an entry can be neither changed nor left out
without every later checksum being wrong. One `append` is one synced write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct

import msgspec
import plyvel
from crc32c import crc32c

from streamd.raft.messages import Entry, HardState
from streamd.storage.errors import RESTORE_HINT, LogBelowFloor, LogCorrupt
from streamd.storage.floor import Floor, read_floor, write_floor
from streamd.storage.leveldb import FailStop, open_database

# The log is written once, read rarely and deleted in order: a large buffer lets most of it be
# deleted before it was ever sorted into tables.
_WRITE_BUFFER_BYTES = 16 * 1024 * 1024
_RECENT_BYTES = 8 * 1024 * 1024
_KEYS_PER_DELETE = 1000

_KEY = Struct(">IcQ")
_ENTRY = Struct(">QBI")
_CHAINED = Struct(">IIQQB")
_BASE = Struct(">QQI")
_ENTRY_LETTER = b"e"

_HARD_STATE = msgspec.msgpack.Decoder(HardState)


class LogStore:
    """One group's log. Every call blocks; one thread at a time.

    `hard_state` is what is stored; a `LogReader` for the Raft core.
    """

    def __init__(self, directory: Path, floor_file: Path, group_id: int) -> None:
        self._directory = directory
        self._floor_file = floor_file
        self._group_id = group_id
        self._hard_state_key = _KEY.pack(group_id, b"h", 0)
        self._base_key = _KEY.pack(group_id, b"b", 0)
        self._fail_stop = FailStop(directory)
        self._db = open_database(directory, write_buffer_size=_WRITE_BUFFER_BYTES, compression=None)
        self.hard_state = HardState()
        self._base = Floor()
        self._last = Floor()
        self._floor = Floor()
        self._run_starts: list[int] = []
        self._run_terms: list[int] = []
        self._recent: deque[Entry] = deque()
        self._recent_bytes = 0

    @classmethod
    def open(cls, directory: Path, floor_file: Path, *, group_id: int = 0) -> LogStore:
        """Open and verify the log, entry by entry.

        Raises `LogCorrupt` or `LogBelowFloor` when it is not what was written, `StorageFailed`
        when it cannot be read.
        """
        store = cls(directory, floor_file, group_id)
        try:
            with store._fail_stop.guarding():
                store._load()
        except BaseException:
            store._db.close()
            raise
        return store

    # -- reading ------------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        return self._base.index + 1

    @property
    def last_index(self) -> int:
        return self._last.index

    def term(self, index: int) -> int:
        """The term at `index`, from `first_index - 1` to `last_index`."""
        assert self._base.index <= index <= self._last.index, index
        if index == self._base.index:
            return self._base.term
        run = len(self._run_starts) - 1
        while self._run_starts[run] > index:
            run -= 1
        return self._run_terms[run]

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        """Entries from `lo` to before `hi`, at least one, as many as `max_bytes` allows.

        Raises `LogCorrupt`, `StorageFailed`.
        """
        assert self.first_index <= lo < hi <= self._last.index + 1, (lo, hi)
        if self._recent and lo >= self._recent[0].index:
            skip = lo - self._recent[0].index
            return _fitting((self._recent[skip + i] for i in range(hi - lo)), max_bytes)
        with self._fail_stop.guarding():
            return _fitting(self._stored(lo, hi), max_bytes)

    # -- writing ------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry], hard_state: HardState | None) -> None:
        """Store entries and hard state in one synced write.

        Entries follow each other; the first may replace one that is there, which removes all
        behind it. Raises `StorageFailed`.
        """
        with self._fail_stop.guarding():
            batch = self._db.write_batch(sync=True)
            if entries and entries[0].index <= self._last.index:
                self._remove_from(entries[0].index, batch)
            if hard_state is not None:
                batch.put(self._hard_state_key, msgspec.msgpack.encode(hard_state))
            last = self._last
            for entry in entries:
                assert entry.index == last.index + 1, (entry.index, last.index)
                chain = self._chain(last.chain, entry)
                header = _ENTRY.pack(entry.term, entry.kind, chain)
                batch.put(self._key(entry.index), header + entry.payload)
                last = Floor(entry.index, entry.term, chain)
            batch.write()
        for entry in entries:
            self._remember(entry)
        self._last = last
        if hard_state is not None:
            self.hard_state = hard_state

    def compact(self, through_index: int) -> None:
        """Remove the entries up to and including `through_index`.

        A crash in between leaves some of them, which the next start removes: the base is moved
        first. Raises `StorageFailed`.
        """
        if through_index <= self._base.index:
            return
        with self._fail_stop.guarding():
            self.sync_floor()
            base = self._read_floor_at(through_index)
            self._db.put(self._base_key, _BASE.pack(base.index, base.term, base.chain))
            first, self._base = self._base.index + 1, base
            self._delete_slices(first, through_index + 1)
        while len(self._run_starts) > 1 and self._run_starts[1] <= through_index + 1:
            del self._run_starts[0], self._run_terms[0]
        while self._recent and self._recent[0].index <= through_index:
            self._recent_bytes -= len(self._recent.popleft().payload)

    def sync_floor(self) -> None:
        """Note, durably, how far the log reaches. Raises `StorageFailed`."""
        if self._floor != self._last:
            with self._fail_stop.guarding():
                write_floor(self._floor_file, self._last)
                self._floor = self._last

    def check_applied(self, applied_index: int) -> None:
        """Raises `LogBelowFloor` when the state has seen entries that the log has lost."""
        if applied_index > self._last.index:
            raise LogBelowFloor(
                f"the log in {self._directory} ends at entry {self._last.index}, but entries up "
                f"to {applied_index} were applied. {RESTORE_HINT}"
            )

    def close(self) -> None:
        """Note the floor and close the database; after a failure, only close."""
        try:
            if not self._fail_stop.failed:
                self.sync_floor()
        finally:
            self._db.close()

    # -- inside -------------------------------------------------------------------------------

    def _key(self, index: int) -> bytes:
        return _KEY.pack(self._group_id, _ENTRY_LETTER, index)

    def _chain(self, previous: int, entry: Entry) -> int:
        start = crc32c(_CHAINED.pack(previous, self._group_id, entry.index, entry.term, entry.kind))
        return crc32c(entry.payload, start)

    def _load(self) -> None:
        raw = self._db.get(self._hard_state_key)
        if raw is not None:
            self.hard_state = _HARD_STATE.decode(raw)
        raw = self._db.get(self._base_key)
        if raw is not None:
            self._base = Floor(*_BASE.unpack(raw))
        self._floor = read_floor(self._floor_file)
        self._delete_slices(0, self._base.index + 1)
        self._last = self._base
        chain = self._base.chain
        for entry, stored_chain in self._rows(self._base.index + 1, 2**64 - 1):
            chain = self._chain(chain, entry)
            if entry.index != self._last.index + 1 or chain != stored_chain:
                raise LogCorrupt(
                    f"entry {self._last.index + 1} of the log in {self._directory} is missing "
                    f"or damaged. {RESTORE_HINT}"
                )
            self._remember(entry)
            self._last = Floor(entry.index, entry.term, chain)
            if entry.index == self._floor.index and self._last != self._floor:
                raise LogCorrupt(
                    f"entry {entry.index} of the log in {self._directory} is not the one that "
                    f"was known to be there. {RESTORE_HINT}"
                )
        if self._last.index < self._floor.index:
            raise LogBelowFloor(
                f"the log in {self._directory} ends at entry {self._last.index}, but entry "
                f"{self._floor.index} had been stored: acknowledged writes are missing. "
                f"{RESTORE_HINT}"
            )

    def _rows(self, lo: int, hi: int) -> Iterator[tuple[Entry, int]]:
        """Stored entries with their chain checksums, unverified."""
        with self._db.iterator(
            start=self._key(lo), stop=self._key(hi), fill_cache=False, verify_checksums=True
        ) as rows:
            for key, value in rows:
                _, _, index = _KEY.unpack(key)
                term, kind, chain = _ENTRY.unpack_from(value)
                yield Entry(index, term, kind, value[_ENTRY.size :]), chain

    def _stored(self, lo: int, hi: int) -> Iterator[Entry]:
        """Stored entries, each verified against the one before it."""
        chain = self._base.chain if lo == self.first_index else self._read_floor_at(lo - 1).chain
        expected = lo
        for entry, stored_chain in self._rows(lo, hi):
            chain = self._chain(chain, entry)
            if entry.index != expected or chain != stored_chain:
                raise LogCorrupt(
                    f"entry {expected} of the log in {self._directory} is damaged. {RESTORE_HINT}"
                )
            expected += 1
            yield entry

    def _read_floor_at(self, index: int) -> Floor:
        """The index, term and chain checksum of a stored entry."""
        if index == self._base.index:
            return self._base
        value = self._db.get(self._key(index), verify_checksums=True)
        if value is None:
            raise LogCorrupt(f"entry {index} of the log in {self._directory} is missing")
        term, _, chain = _ENTRY.unpack_from(value)
        return Floor(index, term, chain)

    def _remember(self, entry: Entry) -> None:
        if not self._run_terms or self._run_terms[-1] != entry.term:
            self._run_starts.append(entry.index)
            self._run_terms.append(entry.term)
        self._recent.append(entry)
        self._recent_bytes += len(entry.payload)
        while self._recent_bytes > _RECENT_BYTES and len(self._recent) > 1:
            self._recent_bytes -= len(self._recent.popleft().payload)

    def _remove_from(self, index: int, batch: plyvel.WriteBatch) -> None:
        """Remove the log's end, entry `index` included, as part of `batch`.

        The floor goes down first, durably: were it left above the new end, a crash would make
        the node refuse a log that is whole.
        """
        previous = self._read_floor_at(index - 1)
        if self._floor.index >= index:
            write_floor(self._floor_file, previous)
            self._floor = previous
        for stale in range(index, self._last.index + 1):
            batch.delete(self._key(stale))
        self._last = previous
        while self._run_starts and self._run_starts[-1] >= index:
            self._run_starts.pop()
            self._run_terms.pop()
        while self._recent and self._recent[-1].index >= index:
            self._recent_bytes -= len(self._recent.pop().payload)

    def _delete_slices(self, lo: int, hi: int) -> None:
        """Delete entries from `lo` to before `hi`, a bounded batch at a time."""
        with self._db.iterator(
            start=self._key(lo), stop=self._key(hi), include_value=False, fill_cache=False
        ) as keys:
            doomed: list[bytes] = []
            for key in keys:
                doomed.append(key)
                if len(doomed) == _KEYS_PER_DELETE:
                    self._delete(doomed)
                    doomed = []
            self._delete(doomed)

    def _delete(self, keys: Sequence[bytes]) -> None:
        batch = self._db.write_batch()
        for key in keys:
            batch.delete(key)
        batch.write()


def _fitting(entries: Iterable[Entry], max_bytes: int) -> list[Entry]:
    """Entries as long as their payloads fit, but at least one."""
    found: list[Entry] = []
    size = 0
    for entry in entries:
        size += len(entry.payload)
        if found and size > max_bytes:
            break
        found.append(entry)
    return found
