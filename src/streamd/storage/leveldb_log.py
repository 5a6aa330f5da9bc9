"""A log's rows in LevelDB, each entry with its checksum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct

import msgspec

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import Entry, HardState
from streamd.storage.leveldb import open_database, translated

# The log is written in order, so its tables hardly overlap and a larger buffer saves no sorting.
# A single snapshot that an application publishes would fill a larger one twice over.
_WRITE_BUFFER_BYTES = 2 * 1024 * 1024

_KEY = Struct(">IcQ")
_ENTRY = Struct(">QBI")
_BASE = Struct(">QQI")
_ENTRY_LETTER, _HARD_STATE_LETTER, _BASE_LETTER = b"e", b"h", b"b"

_HARD_STATE = msgspec.msgpack.Decoder(HardState)


def _is_log_key(key: bytes) -> bool:
    """Whether a log can have a row with that key."""
    return len(key) == _KEY.size and key[4:5] in (
        _ENTRY_LETTER,
        _HARD_STATE_LETTER,
        _BASE_LETTER,
    )


class LevelDBLog:
    """A `LogEngine`: the rows of one group's log in a database of their own."""

    def __init__(self, directory: Path, group_id: int, *, paranoid: bool = True) -> None:
        """See `log_engine.open_engine`."""
        self.directory = directory
        self._group_id = group_id
        self._hard_state_key = _KEY.pack(group_id, _HARD_STATE_LETTER, 0)
        self._base_key = _KEY.pack(group_id, _BASE_LETTER, 0)
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
            raw = self._db.get(self._hard_state_key)
        return HardState() if raw is None else _HARD_STATE.decode(raw)

    def base(self) -> ChainPosition:
        """The last entry removed from the log's beginning; index 0 without any."""
        with translated(self.directory):
            raw = self._db.get(self._base_key)
        return ChainPosition() if raw is None else ChainPosition(*_BASE.unpack(raw))

    def position(self, index: int) -> ChainPosition | None:
        """The position that entry `index` was written with; None without such an entry."""
        with translated(self.directory):
            value = self._db.get(self._key(index), verify_checksums=True)
        if value is None:
            return None
        term, _, chain = _ENTRY.unpack_from(value)
        return ChainPosition(index, term, chain)

    def rows(self, lo: int, hi: int) -> Iterator[tuple[Entry, ChainPosition]]:
        """The entries there are from `lo` to before `hi`, in order, as they were written."""
        with (
            translated(self.directory),
            self._db.iterator(
                start=self._key(lo), stop=self._key(hi), fill_cache=False, verify_checksums=True
            ) as rows,
        ):
            for key, value in rows:
                _, _, index = _KEY.unpack(key)
                term, kind, chain = _ENTRY.unpack_from(value)
                entry = Entry(index, term, kind, value[_ENTRY.size :])
                yield entry, ChainPosition(index, term, chain)

    def indexes(self, lo: int, hi: int) -> Iterator[int]:
        """The indexes of the entries from `lo` to before `hi`, whatever is in them."""
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
        """About how many bytes on disk the entries from `lo` to before `hi` take."""
        with translated(self.directory):
            return int(self._db.approximate_size(self._key(lo), self._key(hi)))

    def write(
        self,
        *,
        removed: Iterable[int] = (),
        entries: Iterable[tuple[Entry, ChainPosition]] = (),
        hard_state: HardState | None = None,
        base: ChainPosition | None = None,
    ) -> None:
        """Remove entries, then put entries, hard state and base: all or nothing, and synced."""
        with translated(self.directory):
            batch = self._db.write_batch(sync=True)
            for index in removed:
                batch.delete(self._key(index))
            for entry, position in entries:
                header = _ENTRY.pack(entry.term, entry.kind, position.chain)
                batch.put(self._key(entry.index), header + entry.payload)
            if hard_state is not None:
                batch.put(self._hard_state_key, msgspec.msgpack.encode(hard_state))
            if base is not None:
                batch.put(self._base_key, _BASE.pack(base.index, base.term, base.chain))
            batch.write()

    def close(self) -> None:
        """Release the directory; a repetition does nothing."""
        self._db.close()

    def _key(self, index: int) -> bytes:
        return _KEY.pack(self._group_id, _ENTRY_LETTER, index)
