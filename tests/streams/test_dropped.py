"""What a node has evicted, since the cold store has it: no reader searches for it here."""

from __future__ import annotations

from streamd.streams import keys
from streamd.streams.offsets import START
from tests.streams.driver import Driver
from tests.streams.memory_store import MemoryStore


class Watched(MemoryStore):
    """Notes below which letters there was a search."""

    def __init__(self) -> None:
        super().__init__()
        self.searched: set[bytes] = set()

    def scan(
        self, start: bytes, stop: bytes, *, limit: int, max_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        self.searched.add(start[:1])
        return super().scan(start, stop, limit=limit, max_bytes=max_bytes)


def test_a_reader_of_evicted_records_does_not_go_over_what_is_left_of_them() -> None:
    driver = Driver(store := Watched())
    driver.create()
    driver.append(b"one")
    driver.flush_cold()
    store.searched.clear()
    assert bytes(driver.read(driver.stream(), START).parts[0]) == b"one"
    assert store.searched == {keys.SLICE}


def test_what_follows_the_evicted_records_is_found_where_it_is() -> None:
    driver = Driver()
    driver.create()
    driver.append(b"one")
    driver.flush_cold()
    driver.append(b"two")
    driver.flush()
    driver.reopen()
    assert driver.content() == b"onetwo"


def test_nothing_of_it_is_noted_any_more_once_the_stream_is_gone() -> None:
    driver = Driver(store := MemoryStore())
    driver.create()
    driver.append(b"one")
    driver.flush_cold()
    assert [row for row in store.rows if row[:1] == keys.DROPPED]
    driver.delete()
    driver.flush()
    driver.reclaim()
    assert not [row for row in store.rows if row[:1] == keys.DROPPED]
