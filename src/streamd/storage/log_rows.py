"""How a log lies in its database, each entry with its place in the chain of checksums."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import msgspec

from streamd.raft.chain import chain
from streamd.raft.messages import Entry, HardState
from streamd.storage.binding import plyvel
from streamd.storage.errors import RESTORE_HINT, LogCorrupt
from streamd.storage.floor import Floor

MAX_INDEX = 2**64 - 1

_KEY = Struct(">IcQ")
_ENTRY = Struct(">QBI")
_BASE = Struct(">QQI")
_ENTRY_LETTER, _HARD_STATE_LETTER, _BASE_LETTER = b"e", b"h", b"b"

_HARD_STATE = msgspec.msgpack.Decoder(HardState)


def is_log_key(key: bytes) -> bool:
    """Whether a row with that key can be of a log."""
    return len(key) == _KEY.size and key[4:5] in (
        _ENTRY_LETTER,
        _HARD_STATE_LETTER,
        _BASE_LETTER,
    )


class LogRows:
    """The rows of one group's log in an open database."""

    def __init__(self, db: plyvel.DB, group_id: int, name: str) -> None:
        """`name` says in error messages which log it is."""
        self._db = db
        self._group_id = group_id
        self._name = name
        self._hard_state_key = _KEY.pack(group_id, _HARD_STATE_LETTER, 0)
        self._base_key = _KEY.pack(group_id, _BASE_LETTER, 0)

    def key(self, index: int) -> bytes:
        return _KEY.pack(self._group_id, _ENTRY_LETTER, index)

    def chain(self, previous: int, entry: Entry) -> int:
        """The checksum of `entry` behind an entry whose checksum is `previous`."""
        return chain(previous, self._group_id, entry)

    # -- reading ------------------------------------------------------------------------------

    def stored_size(self, lo: int, hi: int) -> int:
        """About how many bytes the entries from `lo` to before `hi` take on disk."""
        return int(self._db.approximate_size(self.key(lo), self.key(hi)))

    def hard_state(self) -> HardState:
        raw = self._db.get(self._hard_state_key)
        return HardState() if raw is None else _HARD_STATE.decode(raw)

    def base(self) -> Floor:
        """The last entry that was removed from the log's beginning."""
        raw = self._db.get(self._base_key)
        return Floor() if raw is None else Floor(*_BASE.unpack(raw))

    def place(self, index: int) -> Floor:
        """The index, term and checksum of a stored entry. Raises `LogCorrupt`."""
        value = self._db.get(self.key(index), verify_checksums=True)
        if value is None:
            raise LogCorrupt(f"entry {index} of {self._name} is missing. {RESTORE_HINT}")
        term, _, chain = _ENTRY.unpack_from(value)
        return Floor(index, term, chain)

    def following(self, last: Floor, hi: int = MAX_INDEX) -> Iterator[tuple[Entry, Floor]]:
        """Entries behind `last` to before `hi`, or to the end, each proved by the one before it.

        Raises `LogCorrupt` at the first that is missing or not the one that was written.
        """
        with self._db.iterator(
            start=self.key(last.index + 1),
            stop=self.key(hi),
            fill_cache=False,
            verify_checksums=True,
        ) as rows:
            for key, value in rows:
                _, _, index = _KEY.unpack(key)
                term, kind, stored_chain = _ENTRY.unpack_from(value)
                entry = Entry(index, term, kind, value[_ENTRY.size :])
                chain = self.chain(last.chain, entry)
                if index != last.index + 1 or chain != stored_chain:
                    raise LogCorrupt(
                        f"entry {last.index + 1} of {self._name} is missing or damaged. "
                        f"{RESTORE_HINT}"
                    )
                last = Floor(index, term, chain)
                yield entry, last
        if hi != MAX_INDEX and last.index + 1 < hi:
            raise LogCorrupt(f"entry {last.index + 1} of {self._name} is missing. {RESTORE_HINT}")

    def indexes(self, lo: int, hi: int = MAX_INDEX) -> Iterator[int]:
        """Indexes of the rows from `lo` to before `hi`, whatever is in them."""
        with self._db.iterator(
            start=self.key(lo),
            stop=self.key(hi),
            include_value=False,
            fill_cache=False,
            verify_checksums=True,
        ) as keys:
            for key in keys:
                yield _KEY.unpack(key)[2]

    # -- writing ------------------------------------------------------------------------------

    def put_hard_state(self, batch: plyvel.WriteBatch, hard_state: HardState) -> None:
        batch.put(self._hard_state_key, msgspec.msgpack.encode(hard_state))

    def put_base(self, batch: plyvel.WriteBatch, base: Floor) -> None:
        batch.put(self._base_key, _BASE.pack(base.index, base.term, base.chain))

    def put_entry(self, batch: plyvel.WriteBatch, last: Floor, entry: Entry) -> Floor:
        """Add an entry behind `last`; returns its own place."""
        assert entry.index == last.index + 1, (entry.index, last.index)
        chain = self.chain(last.chain, entry)
        header = _ENTRY.pack(entry.term, entry.kind, chain)
        batch.put(self.key(entry.index), header + entry.payload)
        return Floor(entry.index, entry.term, chain)
