"""Packs as readers of the cold store meet them."""

from __future__ import annotations

from streamd.objectstore.packs import Pack
from streamd.streams.reading import LocatedSlice


def located(pack: Pack) -> list[LocatedSlice]:
    """The slices of a pack, as the state names them to a reader."""
    return [LocatedSlice(pack.name, ref) for ref in pack.slices]
