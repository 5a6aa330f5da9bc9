"""Rows of packs are read a page at a time."""

from __future__ import annotations

import msgspec

from streamd.streams import keys
from streamd.streams.cold.packs import living_page, pack_page, stored_packs
from streamd.streams.model import Pack
from tests.streams.memory_store import MemoryStore


def store_of(*live: int) -> MemoryStore:
    """Packs 0, 1, … of term 7, each with that many bytes to which slices refer."""
    store = MemoryStore()
    store.write(
        [
            (
                keys.pack_key(7, number),
                msgspec.msgpack.encode(Pack(f"pack{number}", 100, count)),
            )
            for number, count in enumerate(live)
        ]
    )
    return store


def test_a_page_names_the_key_at_which_the_next_one_starts() -> None:
    store = store_of(1, 2, 3)
    page, following = pack_page(store, limit=2)
    assert [one.place for one in page] == [(7, 0), (7, 1)]
    assert following is not None
    page, following = pack_page(store, following, limit=2)
    assert [one.pack.name for one in page] == ["pack2"]
    assert following is None
    assert [one.place for one in stored_packs(store)] == [(7, 0), (7, 1), (7, 2)]


def test_a_page_of_living_packs_leaves_out_dead_ones_but_passes_them() -> None:
    store = store_of(0, 5, 0)
    page, following = living_page(store, limit=2)
    assert [one.place for one in page] == [(7, 1)]
    assert following is not None
    assert living_page(store, following, limit=2) == ([], None)
