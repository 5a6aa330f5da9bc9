"""The packs in a cold store that a state refers to."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from streamd.streams import keys
from streamd.streams.model import Pack
from streamd.streams.tables import KeyValue

_ROWS_AT_ONCE = 1000
_DECODER = msgspec.msgpack.Decoder(Pack)


def living_packs(store: KeyValue) -> Iterator[Pack]:
    """Those that something alive is in, of what is stored. Blocks."""
    start: bytes | None = keys.PACK
    while start is not None:
        rows = store.scan(start, bytes([keys.PACK[0] + 1]), limit=_ROWS_AT_ONCE)
        yield from (pack for _, value in rows if (pack := _DECODER.decode(value)).live)
        start = rows[-1][0] + b"\0" if len(rows) == _ROWS_AT_ONCE else None
