"""Packs as readers of the cold store use them."""

from __future__ import annotations

from collections.abc import Iterator

from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.packs import Pack, decode_slice, read_pack
from streamd.streams.chunks import Chunk
from streamd.streams.model import SliceRef
from streamd.streams.queries.reading import LocatedSlice


def located(pack: Pack) -> list[LocatedSlice]:
    """The slices of a pack, as the state names them to a reader."""
    return [LocatedSlice(pack.name, ref) for ref in pack.slices]


def chunks_of(content: bytes) -> Iterator[tuple[SliceRef, Chunk]]:
    """All slices of a whole pack, each checked, its digest included.

    Raises as `read_pack` and `decode_slice` do.
    """
    for ref in read_pack(content).slices:
        chunk = decode_slice(ref, content[ref.offset : ref.offset + ref.length])
        if chunk.digest() != ref.digest:
            raise ObjectCorrupt(f"a slice of stream {ref.stream_id} has a wrong digest")
        yield ref, chunk
