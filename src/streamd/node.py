"""A node: its stores and its group, brought up and down in order."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import structlog
import trio

from streamd.blocking import RunBlocking
from streamd.group import Group
from streamd.metrics import Metrics
from streamd.peers import Audience
from streamd.raft.core import Core
from streamd.raft.membership import BOOTSTRAP_HARD_STATE, bootstrap_entry, decode_configuration
from streamd.raft.messages import Configuration
from streamd.reads import Reads
from streamd.reclaim import reclaim_forever
from streamd.storage.data_dir import DataDir
from streamd.storage.log_store import LogStore
from streamd.storage.state_store import StateStore
from streamd.streams.machine import Machine
from streamd.streams.state import State

log = structlog.get_logger("streamd.node")


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Stores:
    """The open stores of a data directory."""

    def __init__(self, data_dir: DataDir, log_store: LogStore, state_store: StateStore) -> None:
        self.data_dir = data_dir
        self.log = log_store
        self.state = state_store

    @classmethod
    def open(cls, path: Path, node_id: int) -> Stores:
        """Open and check everything in a data directory. Blocks. Raises `StorageError`."""
        data_dir = DataDir.open(path, node_id)
        log_store = None
        try:
            log_store = LogStore.open(data_dir.log, data_dir.floor)
            if log_store.last_index == 0:
                log_store.append([bootstrap_entry([node_id])], BOOTSTRAP_HARD_STATE)
            return cls(data_dir, log_store, StateStore(data_dir.state))
        except BaseException:
            if log_store is not None:
                log_store.close()
            data_dir.close()
            raise

    def close(self) -> None:
        """Close in the order in which one depends on the other. Blocks."""
        try:
            self.state.close()
        finally:
            try:
                self.log.close()
            finally:
                self.data_dir.close()


class Node:
    """One member of the group, over its open stores."""

    def __init__(
        self,
        stores: Stores,
        *,
        run_blocking: RunBlocking,
        clock_ms: Callable[[], int],
        random: Random,
        audience: Audience,
        metrics: Metrics,
    ) -> None:
        """Blocks for a read or two. Raises `StorageError` when the stores do not fit together."""
        state = State(stores.state)
        header = state.header
        stores.log.check_applied(header.applied_index)
        self.stores = stores
        self.metrics = metrics
        self._run_blocking = run_blocking
        configuration = (
            decode_configuration(header.configuration) if header.configuration else Configuration()
        )
        core = Core(
            node_id=stores.data_dir.identity.node_id,
            hard_state=stores.log.hard_state,
            log=stores.log,
            applied_index=header.applied_index,
            configuration=configuration,
            random=random,
        )
        self.group = Group(
            core,
            stores.log,
            Machine(state),
            stores.state,
            run_blocking=run_blocking,
            clock_ms=clock_ms,
            metrics=metrics,
            audience=audience,
        )
        self.reads = Reads(state, stores.state, run_blocking)
        self._export_gauges()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the node; inside, it has recovered and serves. Raises `StorageError`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.group.run)
            await self.group.read_barrier()
            nursery.start_soon(reclaim_forever, self.stores.state, self._run_blocking)
            yield
            await self.group.flush()
            nursery.cancel_scope.cancel()

    def status(self) -> dict[str, object]:
        """Where the node stands in its group, for operators."""
        core = self.group.core
        configuration = core.configuration
        return {
            "cluster_id": self.stores.data_dir.identity.cluster_id,
            "node_id": core.node_id,
            "role": core.role.name.lower(),
            "leader_id": core.leader_id or None,
            "term": core.term,
            "commit_index": core.commit_index,
            "last_applied": core.applied_index,
            "last_log_index": core.last_index,
            "voters": sorted(configuration.voters),
            "learners": sorted(configuration.learners),
            "streams": self.group.state.header.streams,
        }

    def _export_gauges(self) -> None:
        core, gauge = self.group.core, self.metrics.gauge
        gauge("raft_term", "The node's Raft term.", lambda: core.term)
        gauge("raft_role", "0 follower, 1 or 2 candidate, 3 leader.", lambda: core.role)
        gauge("raft_commit_index", "The last committed log entry.", lambda: core.commit_index)
        gauge("raft_applied_index", "The last applied log entry.", lambda: core.applied_index)
        gauge("streams", "Streams that exist.", lambda: self.group.state.header.streams)
