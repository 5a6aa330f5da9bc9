"""Evicted records: no reader searches for them on this node."""

from __future__ import annotations

from streamd.streams import keys
from streamd.streams.offsets import START
from tests.streams.driver import Driver
from tests.streams.memory_store import MemoryStore


class Watched(MemoryStore):
    """Records below which key letters a search happened."""

    def __init__(self) -> None:
        super().__init__()
        self.searched: set[bytes] = set()

    def scan(
        self, start: bytes, stop: bytes, *, limit: int, max_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        self.searched.add(start[:1])
        return super().scan(start, stop, limit=limit, max_bytes=max_bytes)


def test_a_reader_of_evicted_records_skips_their_remaining_rows() -> None:
    driver = Driver(store := Watched())
    driver.create()
    driver.append(b"one")
    driver.flush_cold()
    store.searched.clear()
    assert bytes(driver.read(driver.stream(), START).parts[0]) == b"one"
    assert store.searched == {keys.SLICE}


def test_records_after_the_evicted_ones_are_found() -> None:
    driver = Driver()
    driver.create()
    driver.append(b"one")
    driver.flush_cold()
    driver.append(b"two")
    driver.flush()
    driver.reopen()
    assert driver.content() == b"onetwo"


def test_the_notes_about_a_deleted_streams_evicted_records_are_removed() -> None:
    driver = Driver(store := MemoryStore())
    driver.create()
    driver.append(b"one")
    driver.flush_cold()
    assert [row for row in store.rows if row[:1] == keys.DROPPED]
    driver.delete()
    driver.flush()
    driver.reclaim()
    assert not [row for row in store.rows if row[:1] == keys.DROPPED]
