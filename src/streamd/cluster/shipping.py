"""Sends Raft snapshots to followers, and receives them.

Each step is a request with an answer, so at most one piece is under way, and the follower's answer
names the piece that it wants next. After an interruption the sender offers the same snapshot again,
and the transfer continues where it stopped; both sides keep their part for a limited time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import msgspec
import structlog
import trio

from streamd.cluster.cluster import Cluster
from streamd.group.group import Group
from streamd.group.log_formats import unknown_to
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.process.threads import RunBlocking
from streamd.storage.incoming import SnapshotDamaged, SnapshotSink
from streamd.storage.raft_snapshots import (
    SnapshotMeta,
    SnapshotPiece,
    SnapshotSource,
    SnapshotUnavailable,
)
from streamd.streams.content import UNDECODABLE

log = structlog.get_logger("streamd.snapshots")

MAX_AT_ONCE = 2
# How long the leader keeps a snapshot for a follower that has stopped answering.
PATIENCE_S = 60.0
RETRY_S = 0.5
# While others write, the transfer pauses this many times as long as a piece took: no client waits
# for the follower, and without pauses it would take half of the writers' cores and disks.
_REST = 1.0
_MAX_REST_S = 1.0
# How long a follower keeps an unfinished snapshot when no more of it arrives.
KEPT_S = 2 * PATIENCE_S


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Offer a snapshot. The answer names the first piece wanted, or none."""

    meta: SnapshotMeta


class Take(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A piece of the snapshot that was offered last."""

    snapshot_id: int
    piece: SnapshotPiece


class Finish(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Install the snapshot: all pieces have been received."""

    snapshot_id: int


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`wanted` is the next piece; none if the follower needs nothing more. With `is_complete` it
    has all pieces, and waits for permission to install them."""

    wanted: int | None = None
    is_complete: bool = False


_ENCODER = msgspec.msgpack.Encoder()
_STEP = msgspec.msgpack.Decoder(Begin | Take | Finish)
_ANSWER = msgspec.msgpack.Decoder(Answer)


class _Unwanted(Exception):
    """This node is no longer the follower's leader."""


class SnapshotSender:
    """Sends Raft snapshots to followers that need entries before the log's first."""

    def __init__(
        self,
        group: Group,
        cluster: Cluster,
        *,
        only_hot: bool,
        run_blocking: RunBlocking,
        random: Random,
    ) -> None:
        """`only_hot` leaves out records that the follower finds in the cold store."""
        self._only_hot = only_hot
        self._group = group
        self._cluster = cluster
        self._run_blocking = run_blocking
        self._random = random
        self._at_once = trio.CapacityLimiter(MAX_AT_ONCE)
        self._receiving: set[int] = set()

    async def send(self, peer_id: int) -> None:
        """Send a snapshot to a follower, and report the result to the group, whatever happens.

        Does nothing while a transfer to the follower is under way: that transfer will report.
        Raises `StorageError`.
        """
        if peer_id in self._receiving:
            return
        self._receiving.add(peer_id)
        index = None
        try:
            self._check_understands(peer_id)
            async with self._at_once, self._snapshot() as source:
                await self._deliver(source, peer_id)
                index = source.meta.index
                log.info("sent a Raft snapshot", to=peer_id, index=index)
        except (Unavailable, OutcomeUnknown, SnapshotUnavailable, _Unwanted) as error:
            log.warning("could not send a Raft snapshot", to=peer_id, error=str(error))
        finally:
            self._receiving.remove(peer_id)
            self._group.storage.snapshot_ended(peer_id, index)

    def _check_understands(self, peer_id: int) -> None:
        """Raises `SnapshotUnavailable` for a node of a release that does not know all of the state:
        its own would differ from then on."""
        log_format = self._cluster.log_format_of(peer_id)
        if log_format is None:
            return
        if unknown := unknown_to(log_format, self._group.state.header):
            raise SnapshotUnavailable(f"its release does not know what this cluster has: {unknown}")

    @asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[SnapshotSource]:
        """A snapshot as of now. Raises `SnapshotUnavailable`."""
        await self._group.storage.flush()
        source = await self._group.storage.open_snapshot(
            self._random.getrandbits(64), only_hot=self._only_hot
        )
        try:
            with self._group.retention.keeping_after(source.meta.index):
                yield source
        finally:
            with trio.CancelScope(shield=True):
                await self._run_blocking(source.close)

    async def _deliver(self, source: SnapshotSource, peer_id: int) -> None:
        """Send a snapshot, and continue after each interruption, until the follower has it or has
        made no progress for long. Raises `Unavailable`, `OutcomeUnknown`, `SnapshotUnavailable`."""
        meta = source.meta
        log.info("sending a Raft snapshot", to=peer_id, index=meta.index, snapshot=meta.snapshot_id)
        furthest, ends_at = -1, trio.current_time() + PATIENCE_S
        while True:
            try:
                async for wanted in self._send(source, peer_id):
                    if wanted > furthest:
                        furthest, ends_at = wanted, trio.current_time() + PATIENCE_S
                return
            except (Unavailable, OutcomeUnknown) as error:
                if trio.current_time() >= ends_at:
                    raise
                log.info(
                    "the transfer of a Raft snapshot was interrupted", to=peer_id, error=str(error)
                )
            await trio.sleep(RETRY_S)

    async def _send(self, source: SnapshotSource, peer_id: int) -> AsyncIterator[int]:
        """Offer a snapshot, and send its pieces until no more is wanted; yields their numbers."""
        snapshot_id = source.meta.snapshot_id
        answer = await self._ask(peer_id, Begin(source.meta))
        while (wanted := answer.wanted) is not None:
            yield wanted
            if answer.is_complete:
                answer = await self._ask(peer_id, Finish(snapshot_id))
            else:
                started, taken = trio.current_time(), self._group.writes.taken
                piece = await self._run_blocking(source.piece, wanted)
                answer = await self._ask(peer_id, Take(snapshot_id, piece))
                if self._group.writes.taken > taken:
                    await trio.sleep(min(_MAX_REST_S, _REST * (trio.current_time() - started)))

    async def _ask(self, peer_id: int, step: Begin | Take | Finish) -> Answer:
        """Raises `Unavailable`, `OutcomeUnknown`, `_Unwanted`."""
        if peer_id not in self._group.view.peers():
            raise _Unwanted("this node is no longer the follower's leader")
        answer = await self._cluster.ask_snapshot(peer_id, _ENCODER.encode(step))
        try:
            return _ANSWER.decode(answer)
        except UNDECODABLE as error:
            raise Unavailable(f"cannot decode the answer to a snapshot's step: {error}") from error


class SnapshotReceiver:
    """Takes a leader's Raft snapshot and installs it."""

    def __init__(self, group: Group, sink: SnapshotSink, *, run_blocking: RunBlocking) -> None:
        self._group = group
        self._sink = sink
        self._run_blocking = run_blocking
        self._meta: SnapshotMeta | None = None
        self._one_at_a_time = trio.Lock()
        self._last_step_at = trio.current_time()

    async def tidy_forever(self) -> None:
        """Remove an unfinished snapshot whose sender does not come back.

        Raises `StorageError`.
        """
        while True:
            await trio.sleep_until(self._last_step_at + KEPT_S)
            async with self._one_at_a_time:
                if self._group.storage.is_installing:
                    # The last step continues, though the sender has stopped waiting for it.
                    self._last_step_at = trio.current_time()
                if trio.current_time() < self._last_step_at + KEPT_S:
                    continue
                self._meta = None
                await self._run_blocking(self._sink.discard)
                self._last_step_at = trio.current_time()

    async def take_step(self, payload: bytes) -> bytes:
        """Take one step and encode the answer. Raises `Unavailable` when it cannot be taken."""
        try:
            step = _STEP.decode(payload)
        except UNDECODABLE as error:
            raise Unavailable(f"cannot decode a snapshot's step: {error}") from error
        async with self._one_at_a_time:
            self._last_step_at = trio.current_time()
            try:
                return _ENCODER.encode(await self._take(step))
            except SnapshotDamaged as error:
                raise Unavailable(str(error)) from error

    async def _take(self, step: Begin | Take | Finish) -> Answer:
        if self._group.storage.is_installing:
            # The sender has stopped waiting; the received pieces must stay as they are.
            raise Unavailable("a snapshot is being installed")
        if isinstance(step, Begin):
            return await self._begin(step.meta)
        if self._meta is None or step.snapshot_id != self._meta.snapshot_id:
            raise Unavailable("the snapshot is not the one being received")
        if isinstance(step, Take):
            wanted = await self._run_blocking(self._sink.take, step.piece)
            return Answer(wanted, self._sink.is_complete)
        if not self._sink.is_complete:
            raise Unavailable("pieces of the snapshot are missing")
        self._meta = None
        meta = await self._run_blocking(self._sink.finish)
        if not await self._group.storage.install(meta):
            await self._run_blocking(self._sink.discard)
        return Answer()

    async def _begin(self, meta: SnapshotMeta) -> Answer:
        if meta.index <= self._group.view.commit_index:
            self._meta = None
            await self._run_blocking(self._sink.discard)
            return Answer()
        self._meta = meta
        wanted = await self._run_blocking(self._sink.begin, meta)
        return Answer(wanted, self._sink.is_complete)
