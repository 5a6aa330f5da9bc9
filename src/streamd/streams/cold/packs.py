"""The packs in a cold store that a state refers to, as its rows have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from streamd.streams import keys
from streamd.streams.model import Pack
from streamd.streams.tables import KeyValue

_ROWS_AT_ONCE = 1000
_DECODER = msgspec.msgpack.Decoder(Pack)

Place = tuple[int, int]


class StoredPack(NamedTuple):
    """A pack, and the term and number by which rows refer to it."""

    place: Place
    pack: Pack


def pack_page(
    store: KeyValue, start: bytes = keys.PACK, limit: int = _ROWS_AT_ONCE
) -> tuple[list[StoredPack], bytes | None]:
    """The packs in up to `limit` rows from the key `start` on, and the key at which the next page
    starts; None at the end. Blocks."""
    rows = store.scan(start, keys.end_of(keys.PACK), limit=limit)
    packs = [StoredPack(keys.place_in(key[1:]), _DECODER.decode(value)) for key, value in rows]
    return packs, rows[-1][0] + b"\0" if len(rows) == limit else None


def living_page(
    store: KeyValue, start: bytes = keys.PACK, limit: int = _ROWS_AT_ONCE
) -> tuple[list[StoredPack], bytes | None]:
    """A page of packs like `pack_page`, without those to which no slice refers. Blocks."""
    packs, following = pack_page(store, start, limit)
    return [one for one in packs if one.pack.live], following


def stored_packs(store: KeyValue) -> Iterator[StoredPack]:
    """All packs that are stored, in order. Blocks."""
    start: bytes | None = keys.PACK
    while start is not None:
        packs, start = pack_page(store, start)
        yield from packs


def living_packs(store: KeyValue) -> Iterator[Pack]:
    """The stored packs to which slices refer. Blocks."""
    return (pack for _, pack in stored_packs(store) if pack.live)
