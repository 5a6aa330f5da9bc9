"""A node: its stores and its group, started and stopped in order."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random, SystemRandom

import structlog
import trio

from streamd import __version__
from streamd.backup.archive import Archive
from streamd.backup.checkpoints import ArchiveTarget, Checkpointer
from streamd.backup.log_heads import LogHeads
from streamd.backup.log_keys import LogKeys
from streamd.backup.merging import Merger
from streamd.backup.publishing import HeadTarget, Publisher
from streamd.backup.saving import Saver
from streamd.backup.scrub import Scrubber
from streamd.cluster.administration import Administration
from streamd.cluster.cluster import Cluster
from streamd.cluster.members import Health, KnownMembers
from streamd.cluster.shipping import SnapshotReceiver, SnapshotSender
from streamd.config.settings import ClusterConfig, ColdConfig, StorageConfig
from streamd.group.group import Group
from streamd.group.log_formats import TREE_FORMAT, LogFormats
from streamd.group.peers import ChangeListener, NoPeers
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.group.reclaim import reclaim_forever
from streamd.group.stores import Stores, open_core
from streamd.hosts.inspection.disks import DiskSpace, disk_space
from streamd.node.blobs import Blobs
from streamd.node.delivery.deliverer import Deliverer
from streamd.node.delivery.keyring import Keyring
from streamd.node.delivery.webhooks import Webhooks
from streamd.node.disk_guard import DiskGuard
from streamd.node.foresight import Foresight
from streamd.node.operations import Operations
from streamd.node.operations_view import LeaderSurroundings
from streamd.node.position_lookup import PositionLookup
from streamd.node.prover import Prover
from streamd.node.reads import Reads
from streamd.node.subscription_status import SubscriptionCounts
from streamd.node.subscriptions import SubscriptionReads
from streamd.process.metrics import Metrics
from streamd.process.threads import OneThread, RunBlocking
from streamd.storage.data_dir import LOG_KEY_BYTES
from streamd.storage.incoming import SnapshotSink
from streamd.streams.commands import RaiseLevel
from streamd.streams.machine import Machine
from streamd.streams.operations.hosts import HostControl
from streamd.streams.state import State
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.cold_reader import ColdReader
from streamd.tiering.eviction import Evictor
from streamd.tiering.flush import Flusher
from streamd.tiering.gc import ColdGc
from streamd.tiering.tier import ColdTier, PeriodicTask

log = structlog.get_logger("streamd.node")

UNGUARDED = StorageConfig(min_free_bytes=0)


def wall_clock_ms() -> int:
    """Wall time in ms since the epoch."""
    return time.time_ns() // 1_000_000


class Node:
    """One member of the group, over its open stores; with a `cluster`, one of several."""

    def __init__(
        self,
        stores: Stores,
        *,
        run_blocking: RunBlocking,
        in_log_thread: OneThread,
        clock_ms: Callable[[], int],
        random: Random,
        listener: ChangeListener,
        metrics: Metrics,
        cluster: Cluster | None = None,
        timing: ClusterConfig | None = None,
        cold: AsyncObjectStore | None = None,
        cold_config: ColdConfig | None = None,
        storage: StorageConfig = UNGUARDED,
        disk_space: Callable[[Path], DiskSpace] = disk_space,
        secrets: Random | None = None,
        publish: Sequence[HeadTarget] = (),
        publish_every_s: float = 60.0,
        hosts: HostControl | None = None,
        webhooks: Webhooks | None = None,
    ) -> None:
        """`secrets` makes what nobody may guess. The leader sends heads of the log to `publish`,
        and `webhooks` to receivers. `hosts` acts on the hosts of nodes, for operations; without it
        the operator does.

        Blocks for a read or two. Raises `StorageError` when the stores do not fit together.
        """
        timing = timing or ClusterConfig()
        state = State(stores.state, group_id=stores.group_id)
        self.stores = stores
        self.metrics = metrics
        self.cluster = cluster
        self.run_blocking = run_blocking
        self.group = Group(
            open_core(stores, state, random, timing, has_peers=cluster is not None),
            Machine(state),
            stores,
            run_blocking=run_blocking,
            in_log_thread=in_log_thread,
            clock_ms=clock_ms,
            metrics=metrics,
            listener=listener,
            peers=cluster,
            tick_s=timing.heartbeat_interval_ms / 1000,
            nonce=random.getrandbits(63),
        )
        self.log_formats = LogFormats(self.group.view, state, cluster or NoPeers())
        self.disk = self._disk_guard(storage, disk_space)
        self.saver = self._saver(random)
        self.archive: Archive | None = None
        self.cold_config = cold_config or ColdConfig()
        self._secrets = secrets or SystemRandom()
        self._publish = publish, publish_every_s
        self.cold_tier = self._cold_tier(cold, self.cold_config, random)
        reader = ColdReader(None) if self.cold_tier is None else self.cold_tier.reader
        self.reads = Reads(state, stores.state, reader, run_blocking)
        self.subscription_counts = SubscriptionCounts(self.group)
        self.subscriptions = SubscriptionReads(self.group, self.reads, stores.state, run_blocking)
        self._set_up_delivery(webhooks or Webhooks(), clock_ms)
        self.prover = None if self.archive is None else Prover(self.archive, self.reads)
        self.foresight = Foresight(self.group, self.reads)
        self.lookup = PositionLookup(self.group, self.reads, self.foresight)
        self.blobs = Blobs(state, stores.state, reader, run_blocking)
        self.administration: Administration | None = None
        self.operations: Operations | None = None
        if cluster is not None:
            self._set_up_administration(cluster, hosts)
            self._ship_snapshots(cluster, random, only_hot=cold is not None)
        self._nursery: trio.Nursery | None = None

    def _set_up_delivery(self, webhooks: Webhooks, clock_ms: Callable[[], int]) -> None:
        self.keyring = Keyring(self.group, webhooks, self._secrets)
        self.deliverer = Deliverer(
            self.group, self.keyring, webhooks, self.subscriptions.for_wake, clock_ms
        )

    def _ship_snapshots(self, cluster: Cluster, random: Random, *, only_hot: bool) -> None:
        """Set up what sends Raft snapshots to other nodes, and takes theirs."""
        self._sender = SnapshotSender(
            self.group, cluster, only_hot=only_hot, run_blocking=self.run_blocking, random=random
        )
        sink = SnapshotSink(self.stores.data_dir.incoming)
        self._receiver = SnapshotReceiver(self.group, sink, run_blocking=self.run_blocking)

    def health(self) -> Health:
        """What this node says of itself to the leader."""
        return Health(self.disk.is_low, self.group.view.may_vote)

    def _set_up_administration(self, cluster: Cluster, hosts: HostControl | None) -> None:
        members = KnownMembers(
            self.group, cluster, self.log_formats, release=__version__, own_health=self.health
        )
        self.administration = Administration(self.group, cluster, members)
        self.operations = self._operations(cluster, self.administration, members, hosts)

    def _operations(
        self,
        cluster: Cluster,
        administration: Administration,
        members: KnownMembers,
        hosts: HostControl | None,
    ) -> Operations:
        surroundings = LeaderSurroundings(
            self.group,
            cluster,
            administration,
            self.log_formats,
            members,
            hosts=hosts,
            archive_age_ms=lambda: None if self.archive is None else self.archive.lag_ms,
        )
        return Operations(self.group, administration, surroundings)

    def _cold_tier(
        self, cold: AsyncObjectStore | None, config: ColdConfig, random: Random
    ) -> ColdTier | None:
        """The node's use of the cold store, if there is one."""
        if cold is None:
            return None
        self.group.admission.hot_limit_bytes = config.hot_limit_bytes
        reader = ColdReader(cold, cache_bytes=config.cache_bytes)
        self.flusher = Flusher(
            self.group,
            self.stores.state,
            cold,
            config,
            self._cluster_id,
            run_blocking=self.run_blocking,
        )
        self.evictor = Evictor(
            self.group.state,
            self.stores.state,
            self.group.storage.write_lock,
            self.group.reads.stored,
            keep_bytes=config.hot_keep_bytes,
            run_blocking=self.run_blocking,
        )
        target = ArchiveTarget(
            cold,
            self.group,
            self._cluster_id,
            self.run_blocking,
            former_cluster_id=lambda: self.stores.data_dir.identity.former_cluster_id,
        )
        snapshots = Checkpointer(target, config, random=random)
        self.archive = self._archive(target, snapshots, config)
        self.scrubber = Scrubber(target, self.stores.state, config)
        guarded = target.guard.guarded
        self.cold_gc = ColdGc(
            self.group,
            self.stores.state,
            cold,
            reader,
            target.guard,
            config,
            self._cluster_id,
            run_blocking=self.run_blocking,
        )
        return ColdTier(
            self.group,
            cold,
            reader,
            node_tasks=[PeriodicTask("drop", self.evictor.round)],
            leader_tasks=[
                PeriodicTask("flush", guarded(self.flusher.round)),
                PeriodicTask("archive", guarded(self.archive.make_round)),
                PeriodicTask("keys", self.archive.heads.keys.make_round),
                PeriodicTask("snapshot", guarded(snapshots.make_round)),
                PeriodicTask("merge", guarded(Merger(target).make_round)),
                self.cold_gc.task,
                PeriodicTask("scrub", self.scrubber.make_round),
                *(PeriodicTask(f"publish {one.name}", one.make_round) for one in self.publishers),
            ],
        )

    def _archive(
        self, target: ArchiveTarget, checkpointer: Checkpointer, config: ColdConfig
    ) -> Archive:
        """The archive of the log, and what sends its heads elsewhere."""
        archive = Archive(
            target,
            checkpointer,
            config,
            ask_member=None if self.cluster is None else self.cluster.ask_to_archive,
            may_have_tree=self._may_have_tree,
            heads=LogHeads(target, self._log_keys()),
        )
        targets, every_s = self._publish
        self.publishers = [Publisher(archive.heads, one, every_s) for one in targets]
        return archive

    def _log_keys(self) -> LogKeys:
        data_dir = self.stores.data_dir
        private_key = data_dir.read_log_key()
        if private_key is None:
            private_key = self._new_key()
            data_dir.write_log_key(private_key)
        return LogKeys(
            self.group,
            data_dir,
            private_key=private_key,
            run_blocking=self.run_blocking,
            new_key=self._new_key,
            may_have_tree=self._may_have_tree,
            ask_member=None if self.cluster is None else self.cluster.ask_about_log_key,
        )

    def _new_key(self) -> bytes:
        return self._secrets.randbytes(LOG_KEY_BYTES)

    def _may_have_tree(self) -> bool:
        """Whether all members understand the tree over the log."""
        return self.log_formats.may_use(TREE_FORMAT)

    def _disk_guard(self, config: StorageConfig, space: Callable[[Path], DiskSpace]) -> DiskGuard:
        return DiskGuard(
            self.group.admission,
            self.stores.data_dir.path,
            config,
            log_growth=self.group.storage.log_growth,
            unstored_bytes=lambda: self.group.state.unstored_bytes,
            run_blocking=self.run_blocking,
            space=space,
        )

    def _saver(self, random: Random) -> Saver:
        return Saver(
            self.group,
            self._cluster_id,
            run_blocking=self.run_blocking,
            random=random,
            spawn=self._spawn,
        )

    def _cluster_id(self) -> str:
        """The id of the node's cluster, which it may get only when it joins."""
        return self.stores.data_dir.identity.cluster_id

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the node. Inside, a single node has recovered and serves; a node of a cluster may
        still be looking for its leader. Raises `StorageError`, `RaftViolation`."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.disk.is_on:
                await self.disk.look()
                nursery.start_soon(self.disk.watch)
            nursery.start_soon(self.group.run)
            if self.cluster is not None:
                self.cluster.configured(self.group.view.configuration)
                self.cluster.member = self
                nursery.start_soon(self._receiver.tidy_forever)
            else:
                await self.group.reads.catch_up()
                await self._raise_features()
            nursery.start_soon(
                reclaim_forever, self.stores.state, self.run_blocking, self.group.pins
            )
            if self.cold_tier is not None:
                nursery.start_soon(self.cold_tier.run)
            if self.operations is not None:
                nursery.start_soon(self.operations.run)
            nursery.start_soon(self.deliverer.run)
            yield
            if self.cluster is not None:
                self.cluster.member = None
            await self.group.storage.flush()
            nursery.cancel_scope.cancel()

    async def _raise_features(self) -> None:
        """Raise the feature level of a node that is alone: nobody could lack what it brings."""
        if self.log_formats.rises_by_itself:
            try:
                await self.group.writes.propose(RaiseLevel(self.log_formats.common))
            except (Unavailable, OutcomeUnknown) as error:
                log.info("the features are raised at a later start", why=str(error))

    # -- what peers ask -----------------------------------------------------------------------

    async def administer(self, payload: bytes) -> bytes:
        assert self.administration is not None
        return await self.administration.administer(payload)

    async def take_snapshot_step(self, payload: bytes) -> bytes:
        return await self._receiver.take_step(payload)

    async def archive_for(self, payload: bytes) -> bytes:
        if self.archive is None:
            raise Unavailable("this node has no cold store")
        return await self.archive.archive_for(payload)

    def answer_about_log_key(self, payload: bytes) -> bytes:
        if self.archive is None:
            raise Unavailable("this node has no cold store")
        return self.archive.heads.keys.answer(payload)

    def send_snapshots(self, members: Sequence[int]) -> None:
        assert self._nursery is not None
        for member in members:
            self._nursery.start_soon(self._sender.send, member)

    async def hand_over(self) -> None:
        """Transfer leadership, if this node has it and another can take it: it is about to stop."""
        if self.administration is not None:
            await self.administration.hand_over()

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task)

    # -- for clients and operators -------------------------------------------------------------

    def leader_address(self) -> str | None:
        """The address at which clients reach the leader if that is another node; None if
        unknown."""
        leader_id = self.group.view.leader_id
        if self.cluster is None or leader_id in (0, self.group.view.node_id):
            return None
        return self.cluster.client_address_of(leader_id)

    def reaches_leader(self) -> bool:
        """Whether this node leads, or has a connection to the leader, by which it forwards writes
        and asks before it answers reads."""
        leader_id = self.group.view.leader_id
        if self.cluster is None or leader_id == self.group.view.node_id:
            return True
        connection = self.cluster.connections().get(leader_id)
        return connection is not None and connection.connected

    def is_in_contact(self) -> bool:
        """Whether the group has voters and the leader, as far as known, can be reached."""
        return bool(self.group.view.configuration.voters) and self.reaches_leader()

    def is_ready(self) -> bool:
        """Whether the node leads or follows, and its state is as new as it can be."""
        return self.group.view.is_caught_up

    def is_cluster_ready(self) -> bool:
        """Whether the node is ready, and in contact with a leader of a group that has voters."""
        return self.is_ready() and self.is_in_contact()
