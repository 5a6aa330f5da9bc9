"""A log whose writes are durable in its journal, and reach LevelDB some at a time.

The newest entries are in the journal and in memory, all before them in LevelDB. Each batch that
LevelDB gets is synced and has a `Mark`: up to where in the journal it holds everything. So after
any crash the log is what LevelDB has, changed by the journal's records from the mark on; those
before the mark may be overwritten.

Some writes go to LevelDB at once, together with all that was only in memory: those too large to be
worth writing twice, those that replace entries which LevelDB has, and those that move the log's
beginning. They leave no record in the journal.

`settle` moves the oldest records to LevelDB beside the writer, which takes milliseconds. Meanwhile
the writer may add records and nothing else: a write that replaced entries which are on their way to
LevelDB would be undone by them, so it waits. Only if the journal fills faster than `settle` empties
it does the writer move records itself.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, RLock
from time import monotonic
from typing import NamedTuple

import msgspec
import structlog

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import Entry, HardState
from streamd.storage import journal
from streamd.storage.errors import LogCorrupt
from streamd.storage.fail_stop import corrupt, failed
from streamd.storage.files import is_there, write_durably
from streamd.storage.journal import Journal, JournalDamaged, Mark, Record
from streamd.storage.leveldb_log import MAX_INDEX, LevelDBLog

_Row = tuple[Entry, ChainPosition]

log = structlog.get_logger("streamd.storage")


class _Write(msgspec.Struct, frozen=True, array_like=True):
    """The body of a record. Its entries take the place of all from the first one's index on."""

    entries: Sequence[Entry]
    chains: Sequence[int]
    hard_state: HardState | None = None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Write)


class _Unstored(NamedTuple):
    """A record that LevelDB does not have yet: its last entry, if that was not replaced since."""

    last_index: int
    size: int
    end: Mark


class JournaledLog:
    """A `LogEngine`: LevelDB, with a journal before it.

    The reader beside the writer finds a row in memory or, since it is stored there before it
    leaves memory, in LevelDB.
    """

    def __init__(self, directory: Path, group_id: int, *, paranoid: bool = True) -> None:
        """See `log_engine.open_engine`."""
        self.directory = directory
        self._file = directory / "journal"
        if paranoid and is_there(self._file) and not is_there(directory / "CURRENT"):
            raise corrupt(directory, "the directory has a journal but no CURRENT file")
        self._db = LevelDBLog(directory, group_id, paranoid=paranoid)
        try:
            # Up to where LevelDB has everything, in the row that it stored last.
            self._mark = self._replay() if paranoid else self._replay_what_is_left()
            self._journal = Journal(self._file, self._mark)
            self._hard_state = self._db.hard_state()
        except OSError as error:
            self._db.close()
            raise failed(directory, str(error), error.errno) from error
        except BaseException:
            self._db.close()
            raise
        self._is_hard_state_stored = True
        # Held while LevelDB changes, and by a write that replaces entries.
        self._storing = RLock()
        # Held while the fields below change, and the two above; never during a call that blocks.
        self._memory = Lock()
        self._unstored: deque[_Unstored] = deque()
        self._recent: dict[int, _Row] = {}
        self.stalled_s = 0.0
        # LevelDB has all rows before this one.
        self._first_recent = MAX_INDEX

    # -- reading ------------------------------------------------------------------------------

    def hard_state(self) -> HardState:
        """The hard state last written; the default one without any."""
        return self._hard_state

    def base(self) -> ChainPosition:
        """The last entry removed from the log's beginning; index 0 without any."""
        return self._db.base()

    def position(self, index: int) -> ChainPosition | None:
        """The position that entry `index` was written with; None without such an entry."""
        row = self._recent.get(index)
        return self._db.position(index) if row is None else row[1]

    def rows(self, lo: int, hi: int) -> Iterator[_Row]:
        """The stored entries in [`lo`, `hi`) with their positions, in order."""
        at = lo
        while at < hi:
            row = self._recent.get(at)
            first_recent = self._first_recent
            if row is not None:
                yield row
                at += 1
            elif at < first_recent:
                end = min(hi, first_recent)
                yield from self._db.rows(at, end)
                at = end
            else:
                return

    def indexes(self, lo: int, hi: int) -> Iterator[int]:
        """The indexes of the stored entries in [`lo`, `hi`), without reading the entries."""
        with self._memory:
            end = min(hi, self._first_recent)
            recent = [index for index in self._recent if lo <= index < hi]
        yield from self._db.indexes(lo, end)
        yield from recent

    def stored_size(self, lo: int, hi: int) -> int:
        """Approximate bytes on disk of the entries in [`lo`, `hi`)."""
        recent = (self._recent.get(index) for index in range(max(lo, self._first_recent), hi))
        size = sum(len(row[0].payload) for row in recent if row is not None)
        return size + self._db.stored_size(lo, min(hi, self._first_recent))

    def disk_bytes(self) -> int:
        """How much of the disk LevelDB's files and the journal take."""
        return self._db.disk_bytes()

    # -- writing ------------------------------------------------------------------------------

    def free(self, end: int, max_bytes: int) -> None:
        """Give back the disk space of removed entries before `end`, about `max_bytes` of it.

        The journal has none to give: it is a ring, of at most `journal.MAX_BYTES`.
        """
        self._db.free(end, max_bytes)

    def write(
        self,
        entries: Sequence[_Row],
        hard_state: HardState | None = None,
        *,
        replaced: range = range(0),
    ) -> None:
        """Put entries and hard state in place of the entries `replaced`; synced."""
        body = _ENCODER.encode(
            _Write(
                [entry for entry, _ in entries],
                [position.chain for _, position in entries],
                hard_state,
            )
        )
        if hard_state is not None:
            with self._memory:
                self._hard_state, self._is_hard_state_stored = hard_state, False
        is_large = len(body) > self._journal.share_bytes
        if not replaced and not is_large:
            self._append(body, entries)
            return
        with self._storing:
            if is_large or replaced.start < self._first_recent:
                self._write_through(entries, replaced)
            else:
                self._append(body, entries, replaced)

    @property
    def is_filling(self) -> bool:
        """Whether `settle` is due. Blocks for nothing."""
        return self._journal.used_bytes > journal.MAX_BYTES // 2

    def settle(self) -> None:
        """Store in LevelDB what the journal's oldest records hold, if it has any.

        Any thread may call it beside the writer.
        """
        with self._storing:
            with self._memory:
                size, count, last_index, mark = 0, 0, 0, self._mark
                for record in self._unstored:
                    if size >= self._journal.share_bytes:
                        break
                    size += record.size
                    count += 1
                    last_index = max(last_index, record.last_index)
                    mark = record.end
                rows = [self._recent[index] for index in range(self._first_recent, last_index + 1)]
            if not count:
                return
            self._store(mark, entries=rows)
            with self._memory:
                for _ in range(count):
                    self._unstored.popleft()
                # Set before any row is removed, so that a reader that misses one in memory looks in
                # LevelDB.
                first = max(self._first_recent, last_index + 1)
                self._first_recent = first if first in self._recent else MAX_INDEX
                for entry, _ in rows:
                    del self._recent[entry.index]

    def begin_after(self, base: ChainPosition) -> None:
        """Let the log begin after `base`, synced; records of earlier entries are not needed."""
        with self._storing:
            mark = self._mark
            with self._memory:
                while self._unstored and self._unstored[0].last_index <= base.index:
                    mark = self._unstored.popleft().end
            self._store(mark, base=base)

    def restart_after(self, base: ChainPosition) -> None:
        """Remove all entries after `base` and begin after it, synced."""
        with self._storing:
            removed = self._db.indexes(base.index + 1, MAX_INDEX)
            self._store(self._journal.head, removed=removed, base=base)
            self._forget_all()

    def remove(self, indexes: Sequence[int]) -> None:
        """Remove entries before the base; a crash may bring them back."""
        with self._storing:
            stored = [index for index in indexes if index < self._first_recent]
            if stored:
                # No mark that counts is in these rows: `begin_after` has stored one since.
                self._db.remove(stored)
            with self._memory:
                for index in indexes:
                    self._recent.pop(index, None)
                self._first_recent = next(iter(self._recent), MAX_INDEX)

    def close(self) -> None:
        """Release the directory; a repetition does nothing."""
        self._journal.close()
        self._db.close()

    # -- inside -------------------------------------------------------------------------------

    def _write_through(self, entries: Sequence[_Row], replaced: range) -> None:
        """Store in LevelDB all that is in memory, and these entries."""
        recent = [row for index, row in self._recent.items() if index not in replaced]
        removed = range(replaced.start, min(replaced.stop, self._first_recent))
        self._store(self._journal.head, removed=removed, entries=[*recent, *entries])
        self._forget_all()

    def _append(self, body: bytes, entries: Sequence[_Row], replaced: range = range(0)) -> None:
        """Add a record to the journal, with entries in place of `replaced`, all in memory."""
        while not self._journal.append(body):
            began = monotonic()
            self.settle()
            self.stalled_s += monotonic() - began
        with self._memory:
            if replaced:
                self._forget_from(replaced.start)
            for row in entries:
                self._recent[row[0].index] = row
            self._first_recent = next(iter(self._recent), MAX_INDEX)
            last_index = entries[-1][0].index if entries else 0
            self._unstored.append(_Unstored(last_index, len(body), self._journal.head))

    def _store(
        self,
        mark: Mark,
        *,
        removed: Iterable[int] = (),
        entries: Sequence[_Row] = (),
        base: ChainPosition | None = None,
    ) -> None:
        """Change LevelDB, after which it has all that the journal holds before `mark`."""
        with self._memory:
            hard_state = None if self._is_hard_state_stored else self._hard_state
        self._db.store(
            removed=removed, entries=entries, hard_state=hard_state, base=base, mark=mark
        )
        with self._memory:
            # The writer may have given another one meanwhile, which is in the journal only.
            if hard_state is self._hard_state:
                self._is_hard_state_stored = True
        self._mark = mark
        self._journal.release(mark)

    def _forget_all(self) -> None:
        with self._memory:
            self._unstored.clear()
            self._first_recent = MAX_INDEX
            self._recent.clear()

    def _forget_from(self, index: int) -> None:
        """The entries from `index` on, all in memory, are replaced."""
        self._unstored = deque(
            record._replace(last_index=min(record.last_index, index - 1))
            for record in self._unstored
        )
        _remove_from(self._recent, index)

    # -- at the start -------------------------------------------------------------------------

    def _begin_journal(self) -> Mark:
        """Make an empty journal, in the place of any other."""
        journal.create(self._file)
        mark = Mark(secrets.randbits(64))
        self._db.store(mark=mark)
        return mark

    def _replay(self) -> Mark:
        """Store in LevelDB what the journal has from its mark on; returns where that goes on.

        Records of a process that was killed may be in the system's page cache only, and may never
        reach the disk if it has refused them once. So all of them are written again.
        Raises `LogCorrupt`.
        """
        mark = self._db.mark()
        content = self._file.read_bytes() if is_there(self._file) else b""
        if mark is None:
            if any(content):
                raise corrupt(
                    self.directory, "its journal has records, but LevelDB names no place in it"
                )
            return self._begin_journal()
        if not content:
            raise corrupt(self.directory, "its journal is missing")
        try:
            found = [*journal.records(content, mark)]
        except JournalDamaged as damage:
            raise corrupt(self._file, str(damage)) from damage
        end = found[-1].end if found else mark
        torn = journal.torn_end(content, end)
        if torn:
            write_durably(self.directory.with_name(self.directory.name + ".torn"), torn)
            log.warning(
                "the end of the journal was removed: a write that a loss of power cut short",
                file=str(self._file),
                at_byte=end.offset,
                removed_bytes=len(torn),
            )
        rows, hard_state = _outcome(found)
        self._db.store(entries=rows, hard_state=hard_state, mark=end.after_start)
        return end.after_start

    def _replay_what_is_left(self) -> Mark:
        """Store in a damaged LevelDB the records of a damaged journal that can be read.

        Which of these entries are the log's, their chain will tell.
        """
        mark = None
        with suppress(LogCorrupt):
            mark = self._db.mark()
        content = self._file.read_bytes() if is_there(self._file) else b""
        found = journal.records_left(content, 0 if mark is None else mark.sequence)
        rows, hard_state = _outcome(found)
        self._db.store(entries=rows, hard_state=hard_state)
        return self._begin_journal()


def _outcome(found: Sequence[Record]) -> tuple[list[_Row], HardState | None]:
    """What records leave, one after the other: entries, all of them new to LevelDB, because a write
    that replaces what LevelDB has leaves no record; and the hard state if they have one."""
    rows: dict[int, _Row] = {}
    hard_state = None
    for record in found:
        write = _DECODER.decode(record.body)
        if write.hard_state is not None:
            hard_state = write.hard_state
        if not write.entries:
            continue
        _remove_from(rows, write.entries[0].index)
        for entry, chain in zip(write.entries, write.chains, strict=True):
            rows[entry.index] = entry, ChainPosition(entry.index, entry.term, chain)
    return [*rows.values()], hard_state


def _remove_from(rows: dict[int, _Row], index: int) -> None:
    """Remove the row at `index` and those after it, up to the first gap."""
    while index in rows:
        del rows[index]
        index += 1
