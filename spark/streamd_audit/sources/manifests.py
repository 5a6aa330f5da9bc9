"""``streamd_manifests``: the states in the cold store, as their manifests describe them."""

from __future__ import annotations

from typing import Any, ClassVar

from streamd_audit.checkpoints import check_manifest_name, read_manifest
from streamd_audit.errors import OTHER_CLUSTER, Damaged
from streamd_audit.framing import check_digest
from streamd_audit.names import SNAPSHOTS, ManifestName
from streamd_audit.sources.planning import Piece
from streamd_audit.sources.source import BucketSource, ObjectReader, columns, holds
from streamd_audit.store import Store

_BY_LISTING = frozenset(("cluster", "group", "object", "size", "index", "snapshot_id"))


class ManifestsReader(ObjectReader):
    FOLDER = SNAPSHOTS
    NAMES = ManifestName
    OF_NAME: ClassVar = {"group": "group", "index": "index"}

    def look(self, store: Store, piece: Piece, name: ManifestName, row: dict[str, Any]) -> None:
        row["snapshot_id"] = f"{name.snapshot_id:016x}"
        if self.columns <= _BY_LISTING:
            return
        content = store.read(piece.name)
        row["sha256_ok"] = holds(check_digest, piece.name, content)
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

    NAME = "streamd_manifests"
    READER = ManifestsReader
    COLUMNS = columns(
        "cluster string, group int, object string, size bigint, index bigint, "
        "snapshot_id string, term bigint, chain bigint, log_ms bigint, configuration binary, "
        "named_cluster string, named_index bigint, "
        "pieces array<struct<digest:string,size:bigint,rows_size:bigint>>, sha256_ok boolean, "
        "problem string"
    )
