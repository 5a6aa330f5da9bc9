"""Opens and checks a node's stores, and makes the core from them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

import structlog

from streamd import __version__
from streamd.config.settings import ClusterConfig
from streamd.group.log_formats import LOG_FORMAT
from streamd.process.cures import with_cure
from streamd.raft.core import Core, Settings
from streamd.raft.membership import BOOTSTRAP_HARD_STATE, bootstrap_entry, decode_configuration
from streamd.raft.messages import Configuration
from streamd.storage.data_dir import DataDir
from streamd.storage.errors import (
    IdentityMismatch,
    LogBelowFloor,
    LogCorrupt,
    RecoveryUnfinished,
    ReleaseTooOld,
    RestoreUnfinished,
    StateLagsLog,
    StorageError,
    StorageFailed,
)
from streamd.storage.files import is_there
from streamd.storage.incoming import check_installed
from streamd.storage.install import recover_install
from streamd.storage.log_storage import LogStorage, open_log
from streamd.storage.state_store import StateStore
from streamd.streams.state import State

log = structlog.get_logger("streamd.storage")


class Stores:
    """The open stores of a data directory."""

    def __init__(
        self, data_dir: DataDir, log_store: LogStorage, state_store: StateStore, group_id: int
    ) -> None:
        self.data_dir = data_dir
        self.log = log_store
        self.state = state_store
        self.group_id = group_id

    @classmethod
    def open(
        cls,
        path: Path,
        node_id: int,
        cluster: ClusterConfig | None = None,
        *,
        recovering: bool = False,
        group_id: int = 0,
    ) -> Stores:
        """Open and check everything in a data directory. Blocks. Raises `StorageError`.

        A node of a cluster gets its first log entry by founding the cluster or from its leader; a
        single node makes it here. Only `recovering` opens what an interrupted recovery has left.
        """
        try:
            return cls._open(path, node_id, cluster, recovering, group_id)
        except OSError as error:
            raise StorageFailed(f"{path} cannot be opened: {with_cure(error)}") from error

    @classmethod
    def _open(
        cls,
        path: Path,
        node_id: int,
        cluster: ClusterConfig | None,
        recovering: bool,
        group_id: int,
    ) -> Stores:
        """Open the stores like `open`; may also raise `OSError`."""
        name = cluster.name if cluster is not None else None
        joining = cluster is not None and name is not None and node_id != cluster.bootstrap_node_id
        data_dir = DataDir.open(path, node_id, cluster_name=name or "", joining=joining)
        is_strayed = name is None and not recovering and bool(data_dir.identity.cluster_name)
        log_store: LogStorage | None = None
        try:
            if is_there(data_dir.restoring):
                raise RestoreUnfinished(
                    f"the restore into {path} was not finished: run the same 'streamd restore' "
                    "again to continue it"
                )
            if is_there(data_dir.recovering) and not recovering:
                raise RecoveryUnfinished(
                    f"the recovery of {path} was not finished: run the same 'streamd recover "
                    "--offline' again to complete it"
                )
            recover_install(data_dir)
            try:
                log_store = open_log(
                    data_dir.log, data_dir.floor, group_id=group_id, alone=name is None
                )
            except (LogCorrupt, LogBelowFloor) as damage:
                if is_strayed:
                    raise _without_its_cluster(data_dir, set()) from damage
                raise
            if name is None and log_store.last_index == 0:
                if is_strayed:
                    raise _without_its_cluster(data_dir, set())
                log_store.append([bootstrap_entry([node_id])], BOOTSTRAP_HARD_STATE)
            try:
                state_store = _open_state(data_dir, log_store)
            except (LogCorrupt, StateLagsLog) as damage:
                has_leader = name is not None and not recovering
                if log_store.first_index > 1 and not has_leader:
                    raise
                log_store = _make_up_for(damage, data_dir, log_store)
                state_store = StateStore(data_dir.state)
            return cls(data_dir, log_store, state_store, group_id)
        except BaseException:
            if log_store is not None:
                log_store.close()
            data_dir.close()
            raise

    def close(self) -> None:
        """Close all, in the order of their dependencies. Blocks."""
        try:
            self.state.close()
        finally:
            try:
                self.log.close()
            finally:
                self.data_dir.close()


def _open_state(data_dir: DataDir, log_store: LogStorage) -> StateStore:
    """Raises `LogCorrupt`, `StateLagsLog` when the log cannot replay what it lacks."""
    state_store = StateStore(data_dir.state)
    try:
        check_installed(state_store)
        log_store.check_reaches(State(state_store).header.applied_index)
    except BaseException:
        state_store.close()
        raise
    return state_store


def _make_up_for(damage: StorageError, data_dir: DataDir, log_store: LogStorage) -> LogStorage:
    """Set a damaged state aside. The log rebuilds it if the log reaches back to its beginning.

    Otherwise a leader has to send a snapshot. It sends one to a node without a log, so the log is
    set aside as well, and counts as lost: the node does not vote until it holds all of it again.
    Repeatable at each step.
    """
    is_replayed = log_store.first_index == 1
    log.error(
        "the state is damaged; the log rebuilds it"
        if is_replayed
        else "the state is damaged; the leader has to send it",
        why=str(damage),
        kept=str(data_dir.state_damaged),
    )
    if not is_replayed:
        log_store = log_store.set_aside(str(damage))
    data_dir.set_state_aside()
    return log_store


def _without_its_cluster(data_dir: DataDir, voters: Iterable[int]) -> IdentityMismatch:
    """The error for a member's data in a node without peers: alone it would elect nobody, or found
    another cluster over them."""
    identity = data_dir.identity
    of = f" {identity.cluster_name!r}" if identity.cluster_name else ""
    among = ", ".join(map(str, sorted(voters)))
    return IdentityMismatch(
        f"{data_dir.path} holds data of node {identity.node_id} of the cluster{of}"
        + (f" (voters {among})" if among else "")
        + ", and the configuration has no [cluster]: set cluster.name, cluster.listen and "
        "cluster.routes as they were. Only if a majority of the voters is lost for good, `streamd "
        "recover --offline` lets this node go on alone"
    )


def _too_new(data_dir: DataDir, level: int) -> ReleaseTooOld:
    """The first thing that this release would not understand may be hours away, or a rule that it
    would not miss."""
    return ReleaseTooOld(
        f"{data_dir.path} has feature level {level}, and this release of streamd ({__version__}) "
        f"understands the log up to level {LOG_FORMAT}: start the release that wrote it, or a "
        "later one"
    )


def open_core(
    stores: Stores, state: State, random: Random, timing: ClusterConfig, *, has_peers: bool = True
) -> Core:
    """The core for what is stored. Raises `StorageError` when log and state do not fit, when this
    release does not understand the log, and when a node without peers is a member beside others."""
    header = state.header
    if header.features > LOG_FORMAT:
        raise _too_new(stores.data_dir, header.features)
    stores.log.fit_to_state(header.applied_index, header.applied_term)
    lost = stores.log.lost_below
    configuration = (
        decode_configuration(header.configuration) if header.configuration else Configuration()
    )
    ticks = timing.election_timeout_ms // timing.heartbeat_interval_ms
    core = Core(
        node_id=stores.data_dir.identity.node_id,
        hard_state=stores.log.hard_state,
        log=stores.log,
        applied_index=header.applied_index,
        configuration=configuration,
        random=random,
        settings=Settings(election_timeout_ticks=ticks),
        may_vote=lost is None,
        trusted_from_index=0 if lost is None else lost.index,
    )
    if not has_peers and core.configuration.members() - {core.node_id}:
        raise _without_its_cluster(stores.data_dir, core.configuration.voters)
    return core
