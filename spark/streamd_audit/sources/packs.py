"""``streamd_packs``: the packs in the cold store."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from streamd_audit.framing import check_digest
from streamd_audit.names import PACKS, PackName
from streamd_audit.packs import (
    HEAD_BYTES,
    check_name,
    read_head,
    read_pack,
    read_refs,
)
from streamd_audit.sources.planning import Piece
from streamd_audit.sources.source import BucketSource, ObjectReader, columns, holds
from streamd_audit.store import Store


class PacksReader(ObjectReader):
    FOLDER = PACKS
    NAMES = PackName
    OF_NAME: ClassVar = {"group": "group", "term": "term", "number": "number"}

    def wants(self, name: str, size: int) -> bool:
        return super().wants(name, size) and self.filters.admits("object", f"{self.cluster}/{name}")

    def look(self, store: Store, piece: Piece, name: PackName, row: dict[str, Any]) -> None:
        if "sha256_ok" in self.columns:
            content = store.read(piece.name)
            row["sha256_ok"] = holds(check_digest, piece.name, content)
            row["footer_ok"] = False
            head, refs = read_pack(content)
            row["footer_ok"], row["slices"] = True, len(refs)
            check_name(name, head)
            check_digest(piece.name, content)
        elif not self.columns.isdisjoint(("slices", "footer_ok", "problem")):
            row["footer_ok"] = False
            refs = read_refs(partial(store.read, piece.name), piece.size)
            row["footer_ok"], row["slices"] = True, len(refs)
            check_name(name, read_head(store.read(piece.name, 0, HEAD_BYTES)))


class PacksSource(BucketSource):
    """One row for each pack, referred to or not."""

    NAME = "streamd_packs"
    READER = PacksReader
    COLUMNS = columns(
        "cluster string, group int, object string, term bigint, number bigint, size bigint, "
        "slices int, footer_ok boolean, sha256_ok boolean, problem string"
    )
