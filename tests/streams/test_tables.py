"""Tables: decoded rows in a bounded cache that never loses a change."""

from __future__ import annotations

import msgspec

from streamd.streams.model import Bucket
from streamd.streams.tables import Table
from tests.streams.memory_store import MemoryStore

LIMIT = 16


def encoded(value: int) -> bytes:
    return msgspec.msgpack.encode(Bucket(value))


def table_over(store: MemoryStore) -> Table[Bucket]:
    return Table(Bucket, b"b", store.get, LIMIT)


def stored(**values: int) -> MemoryStore:
    return MemoryStore({b"b" + name.encode(): encoded(value) for name, value in values.items()})


def flush(table: Table[Bucket], store: MemoryStore) -> None:
    store.write(table.begin_flush())
    table.end_flush()


def test_a_row_is_read_once() -> None:
    store = stored(a=1)
    table = table_over(store)
    assert b"a" not in table
    assert table.get(b"a") == Bucket(1)
    assert b"a" in table
    assert table.get(b"a") is table.get(b"a")
    assert store.gets == 1


def test_an_absent_row_is_looked_up_once() -> None:
    store = stored()
    table = table_over(store)
    assert table.get(b"a") is None
    assert table.get(b"a") is None
    assert b"a" in table
    assert store.gets == 1


def test_changed_rows_are_visible_at_once_and_stored_by_a_flush() -> None:
    store = stored(a=1, b=2)
    table = table_over(store)
    table.put(b"c", Bucket(3))
    table.delete(b"a")
    assert table.get(b"c") == Bucket(3)
    assert table.get(b"a") is None
    assert len(table.dirty) == 2
    flush(table, store)
    assert store.rows == stored(b=2, c=3).rows
    assert not table.dirty


def test_a_value_changed_in_place_is_stored_after_a_put() -> None:
    store = stored(a=1)
    table = table_over(store)
    value = table.get(b"a")
    assert value is not None
    value.streams = 5
    flush(table, store)
    assert store.rows == stored(a=1).rows
    table.put(b"a", value)
    flush(table, store)
    assert msgspec.msgpack.decode(store.rows[b"ba"], type=Bucket) == Bucket(1, 5)


def test_a_change_during_a_flush_belongs_to_the_next() -> None:
    store = stored()
    table = table_over(store)
    table.put(b"a", Bucket(1))
    items = list(table.begin_flush())
    table.put(b"a", Bucket(2))
    store.write(items)
    table.end_flush()
    assert store.rows == stored(a=1).rows
    assert table.get(b"a") == Bucket(2)
    flush(table, store)
    assert store.rows == stored(a=2).rows


def test_a_row_loaded_ahead_does_not_displace_a_newer_value() -> None:
    table = table_over(stored(a=1))
    table.put(b"a", Bucket(2))
    assert table.install(b"a", encoded(1)) == Bucket(2)
    table.delete(b"a")
    assert table.install(b"a", encoded(1)) is None


def test_a_row_loaded_ahead_is_not_read_again() -> None:
    store = stored(a=1)
    table = table_over(store)
    assert table.install(b"a", store.rows[b"ba"]) == Bucket(1)
    assert table.install(b"b", None) is None
    assert (table.get(b"a"), table.get(b"b")) == (Bucket(1), None)
    assert store.gets == 0


def test_the_cache_is_bounded() -> None:
    table = table_over(stored())
    for number in range(LIMIT * 10):
        table.get(b"%d" % number)
        assert len(table) <= LIMIT + 1


def test_rows_that_are_not_stored_stay_in_the_cache() -> None:
    store = stored()
    table = table_over(store)
    for number in range(LIMIT * 4):
        table.put(b"%d" % number, Bucket(number))
    for number in range(LIMIT * 4):
        table.get(b"absent %d" % number)
    for number in range(LIMIT * 4):
        assert table.get(b"%d" % number) == Bucket(number)
    assert len(store.rows) == 0
    flush(table, store)
    assert len(table) <= LIMIT
    for number in range(LIMIT * 4):
        assert table.get(b"%d" % number) == Bucket(number)


def test_rows_that_are_being_stored_stay_in_the_cache() -> None:
    store = stored()
    table = table_over(store)
    for number in range(LIMIT):
        table.put(b"%d" % number, Bucket(number))
    items = list(table.begin_flush())
    for number in range(LIMIT * 2):
        table.get(b"absent %d" % number)
    for number in range(LIMIT):
        assert table.get(b"%d" % number) == Bucket(number)
    store.write(items)
    table.end_flush()
    assert len(table) <= LIMIT
