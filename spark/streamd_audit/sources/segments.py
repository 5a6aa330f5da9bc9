"""``streamd_segments``: what the segments of the archived log say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from streamd_audit.errors import CHAIN, Damaged
from streamd_audit.framing import check_digest
from streamd_audit.names import LOG, SegmentName, parse
from streamd_audit.segments import (
    HEAD_BYTES,
    SegmentHead,
    check_body,
    check_cluster,
    check_name,
    read_cluster,
    read_entries,
    read_head,
)
from streamd_audit.sources.planning import Piece
from streamd_audit.sources.source import BucketReader, BucketSource
from streamd_audit.store import Store

_OF_HEAD = (
    "previous_index", "previous_term", "previous_chain", "previous_ms", "first_term", "first_ms",
    "last_term", "last_chain", "last_ms", "entries_size", "body_size", "body_crc", "problem",
)  # fmt: skip
_OF_WHOLE = ("named_cluster", "sha256_ok", "crc_ok", "chain_ok")


class SegmentsReader(BucketReader):
    FOLDER = LOG

    def wants(self, name: str, size: int) -> bool:
        found = parse(name)
        return (
            isinstance(found, SegmentName)
            and self.filters.admits("group", found.group)
            and self.filters.admits("first_index", found.first)
            and self.filters.admits("last_index", found.last)
        )

    def batches(self, store: Store, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            name = parse(self.below(piece.name))
            if not isinstance(name, SegmentName):
                continue
            row: dict[str, Any] = {
                "group": name.group,
                "first_index": name.first,
                "last_index": name.last,
            }
            yield from self.looked_at(piece, row, partial(self._look, store, piece, name))

    def _look(self, store: Store, piece: Piece, name: SegmentName, row: dict[str, Any]) -> None:
        """Fill a row as far as its columns are asked for. Raises `Damaged`, with the row filled
        up to there."""
        if not self.columns.isdisjoint(_OF_WHOLE):
            content = store.read(piece.name)
            row["sha256_ok"] = row["crc_ok"] = False
            head = _checked_head(content, name, row)
            row["crc_ok"] = _holds(check_body, head, content)
            row["sha256_ok"] = _holds(check_digest, piece.name, content)
            check_body(head, content)
            row["named_cluster"] = read_cluster(content)
            if "chain_ok" in self.columns:
                row["chain_ok"] = False
                for entry in read_entries(content):
                    if not entry.is_linked:
                        raise Damaged(CHAIN, f"entry {entry.index} breaks the chain", entry.index)
                row["chain_ok"] = True
            check_digest(piece.name, content)
            check_name(name, head)
            check_cluster(content, self.cluster)
        elif not self.columns.isdisjoint(_OF_HEAD):
            content = store.read(piece.name, 0, min(HEAD_BYTES, piece.size))
            check_name(name, _checked_head(content, name, row))


class SegmentsSource(BucketSource):
    """One row for each segment."""

    READER = SegmentsReader
    COLUMNS: ClassVar = {
        "cluster": "string",
        "group": "int",
        "object": "string",
        "size": "bigint",
        "first_index": "bigint",
        "last_index": "bigint",
        "previous_index": "bigint",
        "previous_term": "bigint",
        "previous_chain": "bigint",
        "previous_ms": "bigint",
        "first_term": "bigint",
        "first_ms": "bigint",
        "last_term": "bigint",
        "last_chain": "bigint",
        "last_ms": "bigint",
        "entries_size": "bigint",
        "body_size": "bigint",
        "body_crc": "bigint",
        "named_cluster": "string",
        "sha256_ok": "boolean",
        "crc_ok": "boolean",
        "chain_ok": "boolean",
        "problem": "string",
    }

    @classmethod
    def name(cls) -> str:
        return "streamd_segments"


def _checked_head(content: bytes, name: SegmentName, row: dict[str, Any]) -> SegmentHead:
    head = read_head(content)
    row.update(
        previous_index=head.previous.index,
        previous_term=head.previous.term,
        previous_chain=head.previous.chain,
        previous_ms=head.previous.time_ms,
        first_term=head.first_term,
        first_ms=head.first_time_ms,
        last_term=head.last.term,
        last_chain=head.last.chain,
        last_ms=head.last.time_ms,
        entries_size=head.entries_bytes,
        body_size=head.body_bytes,
        body_crc=head.body_crc,
    )
    return head


def _holds(check: Any, *about: Any) -> bool:
    try:
        check(*about)
    except Damaged:
        return False
    return True
