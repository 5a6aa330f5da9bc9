"""Snapshots on their way between nodes: the leader's side and the follower's.

Each step is a request with an answer, so at most one piece is under way, and the follower's
answer says which piece it wants next: after a break the transfer goes on where it was.
"""

from __future__ import annotations

from random import Random

import msgspec
import structlog
import trio

from streamd.blocking import RunBlocking
from streamd.cluster import Cluster
from streamd.group import Group
from streamd.proposals import OutcomeUnknown, Unavailable
from streamd.storage.incoming import SnapshotDamaged, SnapshotSink
from streamd.storage.snapshots import Piece, SnapshotMeta, SnapshotUnavailable

log = structlog.get_logger("streamd.snapshots")

MAX_AT_ONCE = 2


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A snapshot is offered. The answer: the number of the piece wanted, or nothing of it."""

    meta: SnapshotMeta


class Take(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A piece of the snapshot that was begun last."""

    snapshot_id: int
    piece: Piece


class Finish(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """All pieces have been taken: install them."""

    snapshot_id: int


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`wanted` is the next piece; none when the follower needs nothing more."""

    wanted: int | None = None


_ENCODER = msgspec.msgpack.Encoder()
_STEP = msgspec.msgpack.Decoder(Begin | Take | Finish)
_ANSWER = msgspec.msgpack.Decoder(Answer)


class SnapshotSender:
    """Brings snapshots to followers that are behind the log's beginning."""

    def __init__(
        self, group: Group, cluster: Cluster, *, run_blocking: RunBlocking, random: Random
    ) -> None:
        self._group = group
        self._cluster = cluster
        self._run_blocking = run_blocking
        self._random = random
        self._at_once = trio.CapacityLimiter(MAX_AT_ONCE)

    async def send(self, peer_id: int) -> None:
        """Bring a snapshot to a follower, and tell the core how that went."""
        core = self._group.core
        async with self._at_once:
            try:
                index = await self._send(peer_id)
            except (Unavailable, OutcomeUnknown, SnapshotUnavailable) as error:
                log.warning("a snapshot was not delivered", to=peer_id, error=str(error))
                core.snapshot_failed(peer_id)
            else:
                log.info("a snapshot was delivered", to=peer_id, index=index)
                core.snapshot_sent(peer_id, index)
        self._group.wake()

    async def _send(self, peer_id: int) -> int:
        await self._group.flush()
        source = await self._group.open_snapshot(self._random.getrandbits(64))
        try:
            meta = source.meta
            log.info("sending a snapshot", to=peer_id, index=meta.index)
            answer = await self._ask(peer_id, Begin(meta))
            while answer.wanted is not None:
                piece = await self._run_blocking(source.piece, answer.wanted)
                answer = await self._ask(peer_id, Take(meta.snapshot_id, piece))
                if piece.is_last and answer.wanted == piece.number + 1:
                    answer = await self._ask(peer_id, Finish(meta.snapshot_id))
            return meta.index
        finally:
            with trio.CancelScope(shield=True):
                await self._run_blocking(source.close)

    async def _ask(self, peer_id: int, step: Begin | Take | Finish) -> Answer:
        return _ANSWER.decode(await self._cluster.ask_snapshot(peer_id, _ENCODER.encode(step)))


class SnapshotReceiver:
    """Takes a leader's snapshot and installs it."""

    def __init__(self, group: Group, sink: SnapshotSink, *, run_blocking: RunBlocking) -> None:
        self._group = group
        self._sink = sink
        self._run_blocking = run_blocking
        self._meta: SnapshotMeta | None = None
        self._one_at_a_time = trio.Lock()

    async def take_step(self, payload: bytes) -> bytes:
        """Take one step and encode the answer. Raises `Unavailable` when it cannot be taken."""
        try:
            step = _STEP.decode(payload)
        except msgspec.DecodeError as error:
            raise Unavailable(f"not a step of a snapshot: {error}") from error
        async with self._one_at_a_time:
            try:
                return _ENCODER.encode(await self._take(step))
            except SnapshotDamaged as error:
                raise Unavailable(str(error)) from error

    async def _take(self, step: Begin | Take | Finish) -> Answer:
        if isinstance(step, Begin):
            if step.meta.index <= self._group.core.commit_index:
                return Answer()
            self._meta = step.meta
            return Answer(await self._run_blocking(self._sink.begin, step.meta))
        if self._meta is None or step.snapshot_id != self._meta.snapshot_id:
            raise Unavailable("another snapshot is being received, or none")
        if isinstance(step, Take):
            return Answer(await self._run_blocking(self._sink.take, step.piece))
        if not self._sink.is_complete:
            raise Unavailable("pieces of the snapshot are missing")
        self._meta = None
        meta = await self._run_blocking(self._sink.finish)
        if not await self._group.install(meta):
            await self._run_blocking(self._sink.discard)
        return Answer()
