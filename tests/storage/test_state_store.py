"""The contract of the state store: ordered, atomic, verified, and final in its errors."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from streamd.storage.errors import StorageError
from streamd.storage.state_store import StateStore
from tests.support.directories import sizes


def test_rows_are_written_together_and_read_in_order(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.write([(b"b", b"2"), (b"a", b"1"), (b"c", b"3")])
    store.write([(b"b", None), (b"d", b"4")])
    assert store.get(b"b") is None
    assert store.get_many([b"a", b"x", b"d"]) == [b"1", None, b"4"]
    assert store.scan(b"a", b"z", limit=10) == [(b"a", b"1"), (b"c", b"3"), (b"d", b"4")]
    assert store.scan(b"a", b"d", limit=10) == [(b"a", b"1"), (b"c", b"3")]
    store.close()
    again = StateStore(tmp_path)
    assert again.get(b"d") == b"4"
    again.close()


def test_scans_end_at_a_number_of_rows_or_of_bytes(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.write([(b"%02d" % i, b"x" * 10) for i in range(20)])
    assert len(store.scan(b"", b"\xff", limit=3)) == 3
    assert len(store.scan(b"", b"\xff", limit=20, max_bytes=25)) == 3
    assert len(store.scan(b"", b"\xff", limit=20, max_bytes=0)) == 1
    store.close()


def test_ranges_are_deleted_in_steps(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.write([(b"%02d" % i, b"") for i in range(20)])
    assert store.delete_range(b"05", b"15", max_keys=6) == 6
    assert store.delete_range(b"05", b"15", max_keys=6) == 4
    assert store.delete_range(b"05", b"15", max_keys=6) == 0
    assert [key for key, _ in store.scan(b"", b"\xff", limit=99)] == [
        b"%02d" % i for i in (*range(5), *range(15, 20))
    ]
    store.close()


def on_disk(directory: Path) -> int:
    return sum(sizes(directory, "*.ldb").values())


PER_KEY = 500_000


def forty_rows(directory: Path) -> StateStore:
    store, value = StateStore(directory), Random(1).randbytes(PER_KEY)
    for number in range(40):
        store.write([(b"%02d" % number, value)])
    store.close()
    return StateStore(directory)  # all of them are in tables now


def delete_half(store: StateStore) -> None:
    store.write([(b"%02d" % number, None) for number in range(10, 30)])


def test_disk_space_of_deleted_rows_is_freed(tmp_path: Path) -> None:
    store = forty_rows(tmp_path)
    view = store.view()
    delete_half(store)
    # It would free nothing, since the view still shows the rows.
    assert not store.compact(b"10", b"29")
    assert on_disk(tmp_path) > 39 * PER_KEY
    assert 39 * PER_KEY < store.size_between(b"00", b"99") < 44 * PER_KEY
    view.close()
    assert store.compact(b"10", b"29")
    assert store.size_between(b"10", b"29") < PER_KEY
    assert on_disk(tmp_path) < 25 * PER_KEY
    assert len(store.scan(b"", b"\xff", limit=99)) == 20
    store.close()


def test_files_that_a_reader_kept_through_a_compaction_are_removed_after_it(tmp_path: Path) -> None:
    store = forty_rows(tmp_path)
    with store._calling() as db, db.iterator() as rows:
        next(rows)
        delete_half(store)
        assert store.compact(b"10", b"29")
        assert not store.remove_unused()
        assert on_disk(tmp_path) > 39 * PER_KEY
    assert store.remove_unused()
    assert on_disk(tmp_path) < 25 * PER_KEY
    store.close()


def test_after_one_failed_read_the_store_refuses_all_calls(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.write([(b"%06d" % i, b"some value %d" % i * 20) for i in range(4000)])
    store.close()
    StateStore(tmp_path).close()  # the entries replayed at this start become a table
    for table in tmp_path.glob("*.ldb"):
        content = bytearray(table.read_bytes())
        content[len(content) // 3] ^= 0x40
        table.write_bytes(content)

    store = StateStore(tmp_path)
    with pytest.raises(StorageError, match="corrupt"):
        store.scan(b"", b"\xff", limit=10_000)
    for attempt in (
        lambda: store.get(b"000000"),
        lambda: store.write([(b"new", b"row")]),
        lambda: store.delete_range(b"", b"\xff", max_keys=1),
    ):
        with pytest.raises(StorageError, match="corrupt"):
            attempt()
    store.close()
