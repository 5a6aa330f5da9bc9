"""A replica's stores without the replica: stored entries, and the rows that result from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from streamd.storage.data_dir import DataDir
from streamd.storage.install import recover_install
from streamd.storage.log_storage import open_log
from streamd.storage.raft_snapshots import SnapshotMeta, SnapshotSource
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.model import Header
from tests.storage.images import fill


class Replica:
    """The open stores of one data directory, as a node opens them."""

    configuration = b"the members"

    def __init__(self, path: Path, *, alone: bool = False) -> None:
        self.dir = DataDir.open(path, node_id=1)
        self.recovered: SnapshotMeta | None = recover_install(self.dir)
        self.log = open_log(self.dir.log, self.dir.floor, alone=alone)
        self.state = StateStore(self.dir.state)
        self.log.fit_to_state(self.header.applied_index, self.header.applied_term)

    @property
    def header(self) -> Header:
        raw = self.state.get(keys.HEADER)
        return Header() if raw is None else msgspec.msgpack.decode(raw, type=Header)

    def apply(self, entries: int, rows: Mapping[bytes, bytes], *, term: int = 1) -> None:
        """Append entries, and store rows together with the index of the last."""
        fill(self.log, entries, term=term)
        header = Header(self.log.last_index, term, configuration=self.configuration)
        self.state.write([*rows.items(), (keys.HEADER, msgspec.msgpack.encode(header))])

    def snapshot(self, snapshot_id: int = 7) -> SnapshotSource:
        return SnapshotSource.open(self.state, self.log, snapshot_id)

    def close(self) -> None:
        self.state.close()
        self.log.close()
        self.dir.close()
