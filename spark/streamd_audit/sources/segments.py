"""``streamd_segments``: the segments of the archived log, by their heads."""

from __future__ import annotations

from typing import Any, ClassVar

from streamd_audit.framing import check_digest
from streamd_audit.names import LOG, SegmentName
from streamd_audit.segments import (
    HEAD_BYTES,
    SegmentHead,
    check_body,
    check_cluster,
    check_name,
    check_segment,
    read_cluster,
    read_head,
)
from streamd_audit.sources.planning import Piece
from streamd_audit.sources.source import BucketSource, ObjectReader, columns, holds
from streamd_audit.store import Store

_OF_HEAD = (
    "previous_index", "previous_term", "previous_chain", "previous_ms", "first_term", "first_ms",
    "last_term", "last_chain", "last_ms", "entries_size", "body_size", "body_crc", "problem",
)  # fmt: skip
_OF_WHOLE = ("named_cluster", "sha256_ok", "crc_ok", "chain_ok")


class SegmentsReader(ObjectReader):
    FOLDER = LOG
    NAMES = SegmentName
    OF_NAME: ClassVar = {"group": "group", "first_index": "first", "last_index": "last"}

    def look(self, store: Store, piece: Piece, name: SegmentName, row: dict[str, Any]) -> None:
        if not self.columns.isdisjoint(_OF_WHOLE):
            content = store.read(piece.name)
            row["sha256_ok"] = row["crc_ok"] = False
            head = _checked_head(content, name, row)
            row["crc_ok"] = holds(check_body, head, content)
            row["sha256_ok"] = holds(check_digest, piece.name, content)
            check_body(head, content)
            row["named_cluster"] = read_cluster(content)
            if "chain_ok" in self.columns:
                row["chain_ok"] = False
                check_segment(content)
                row["chain_ok"] = True
            check_digest(piece.name, content)
            check_name(name, head)
            check_cluster(content, self.cluster)
        elif not self.columns.isdisjoint(_OF_HEAD):
            content = store.read(piece.name, 0, min(HEAD_BYTES, piece.size))
            check_name(name, _checked_head(content, name, row))


class SegmentsSource(BucketSource):
    """One row for each segment."""

    NAME = "streamd_segments"
    READER = SegmentsReader
    COLUMNS = columns(
        "cluster string, group int, object string, size bigint, first_index bigint, "
        "last_index bigint, previous_index bigint, previous_term bigint, "
        "previous_chain bigint, previous_ms bigint, first_term bigint, first_ms bigint, "
        "last_term bigint, last_chain bigint, last_ms bigint, entries_size bigint, "
        "body_size bigint, body_crc bigint, named_cluster string, sha256_ok boolean, "
        "crc_ok boolean, chain_ok boolean, problem string"
    )


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
