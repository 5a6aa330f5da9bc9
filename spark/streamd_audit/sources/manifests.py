"""``streamd_manifests``: the states in the cold store, as their manifests tell of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from streamd_audit.errors import OTHER_CLUSTER, Damaged
from streamd_audit.framing import check_digest
from streamd_audit.names import SNAPSHOTS, ManifestName, parse
from streamd_audit.snapshots import check_manifest_name, read_manifest
from streamd_audit.sources.planning import Piece
from streamd_audit.sources.source import BucketReader, BucketSource
from streamd_audit.store import Store

_OF_NAME = ("cluster", "group", "object", "size", "index", "snapshot_id")


class ManifestsReader(BucketReader):
    FOLDER = SNAPSHOTS

    def wants(self, name: str, size: int) -> bool:
        found = parse(name)
        return (
            isinstance(found, ManifestName)
            and self.filters.admits("group", found.group)
            and self.filters.admits("index", found.index)
        )

    def batches(self, store: Store, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            name = parse(self.below(piece.name))
            if not isinstance(name, ManifestName):
                continue
            row: dict[str, Any] = {
                "group": name.group,
                "index": name.index,
                "snapshot_id": f"{name.snapshot_id:016x}",
            }
            yield from self.looked_at(piece, row, partial(self._look, store, piece, name))

    def _look(self, store: Store, piece: Piece, name: ManifestName, row: dict[str, Any]) -> None:
        if self.columns.issubset(_OF_NAME):
            return
        content = store.read(piece.name)
        try:
            check_digest(piece.name, content)
            row["sha256_ok"] = True
        except Damaged:
            row["sha256_ok"] = False
        manifest = read_manifest(content)
        of = manifest.of
        row.update(
            term=of.term,
            chain=of.chain,
            log_ms=of.time_ms,
            configuration=of.configuration,
            named_cluster=of.cluster,
            named_index=of.index,
            pieces=[(piece.digest, piece.size, piece.rows_bytes) for piece in manifest.pieces],
        )
        check_manifest_name(name, manifest)
        if of.cluster != self.cluster:
            raise Damaged(OTHER_CLUSTER, f"the manifest is of cluster {of.cluster}")
        check_digest(piece.name, content)


class ManifestsSource(BucketSource):
    """One row for each manifest."""

    READER = ManifestsReader
    COLUMNS: ClassVar = {
        "cluster": "string",
        "group": "int",
        "object": "string",
        "size": "bigint",
        "index": "bigint",
        "snapshot_id": "string",
        "term": "bigint",
        "chain": "bigint",
        "log_ms": "bigint",
        "configuration": "binary",
        "named_cluster": "string",
        "named_index": "bigint",
        "pieces": "array<struct<digest:string,size:bigint,rows_size:bigint>>",
        "sha256_ok": "boolean",
        "problem": "string",
    }

    @classmethod
    def name(cls) -> str:
        return "streamd_manifests"
