"""The archive of the log: committed entries go to the cold store within about a second.

The leader writes a segment from where the archive ends, reads it back, and proposes `Archived`. If
two leaders write at once, only one proposal is taken; the other's segment holds the same entries
and does no harm. Nodes keep their logs until they are archived (`retention`).

With its end the archive has the hash tree over its entries (`proofs`). Each segment continues the
tree that is in the state, so a leader never learns from the store what it will sign.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import structlog
import trio
from msgspec.structs import replace

from streamd.backup.checkpoints import ArchiveTarget, Checkpointer
from streamd.backup.log_heads import LogHeads
from streamd.config.settings import ColdConfig
from streamd.group.committed_log import EntriesGone
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.objectstore.ends import ArchiveEnd, make_end
from streamd.objectstore.errors import ColdError
from streamd.objectstore.names import ENDS, EndName, group_folder
from streamd.objectstore.segments import SegmentWriter
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.codec import decode_batch
from streamd.streams.commands import Archived
from streamd.streams.content import UNDECODABLE
from streamd.streams.model import LogPosition, LogTree
from streamd.tiering.tier import LeaderTerm

log = structlog.get_logger("streamd.objectstore")

# The size of a segment's entries before compression; and how long the first of them waits.
SEGMENT_BYTES = 16 * 1024 * 1024
ROUND_S = 1.0
# A member that archives for the leader answers within the time of a request.
_FOR_OTHERS_BYTES = 4 * 1024 * 1024
# How much is read from the log at a time: its writes wait meanwhile.
READ_BYTES = 1024 * 1024
# How long to wait for members that do not answer before a gap is accepted.
PATIENCE_S = 60.0
# At most twice this many pointers to the end exist: one removal for each put would cost as much.
_POINTERS_KEPT = 8
# An entry that holds only `Archived` is not larger than this: a tree has at most 64 nodes.
_SMALL_BYTES = 4096

AskMember = Callable[[int, bytes], Awaitable[bytes]]


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """How far the archive goes: a `LogPosition`, and the tree over the log as of it, if there is
    one. Between nodes the tree follows the position's fields, which are all that releases without
    the tree give and read."""

    index: int = 0
    term: int = 0
    chain: int = 0
    time_ms: int = 0
    tree: LogTree | None = None

    @classmethod
    def of(cls, position: LogPosition, tree: LogTree | None) -> Reached:
        at = position
        there = tree if tree is not None and tree.first_index else None
        return cls(at.index, at.term, at.chain, at.time_ms, there)

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.index, self.term, self.chain, self.time_ms)


_REACHED = msgspec.msgpack.Decoder(Reached)


class Archive:
    """One group's archive. The leader calls `make_round`; every node uses the rest."""

    def __init__(
        self,
        target: ArchiveTarget,
        checkpointer: Checkpointer,
        config: ColdConfig,
        *,
        ask_member: AskMember | None = None,
        may_have_tree: Callable[[], bool],
        heads: LogHeads,
    ) -> None:
        """`ask_member` asks another member to archive for this one, see `archive_for`.
        `may_have_tree` says whether all members understand the tree over the log; its `heads` go to
        the store, too."""
        self.target = target
        self._group = target.group
        self._checkpointer = checkpointer
        self._ask_member = ask_member
        self._may_have_tree = may_have_tree
        self.heads = heads
        self._missed_since: float | None = None
        self._pointed = 0
        retention = self._group.retention
        retention.archived_index = lambda: self.archived.index
        retention.max_unarchived_bytes = config.log_limit_bytes

    @property
    def archived(self) -> LogPosition:
        """How far the log is archived, as all nodes agree."""
        return self._group.state.header.archived

    @property
    def reached(self) -> Reached:
        """How far the log is archived, and the tree over it there, as all nodes agree."""
        header = self._group.state.header
        return Reached.of(header.archived, header.tree)

    async def make_round(self, lead: LeaderTerm) -> float:
        """Archive everything there is. Raises `ColdError`, `StorageError`, and for a round that
        must be repeated `Unavailable` or `OutcomeUnknown`."""
        try:
            if self.target.history.has_archive:
                await self._point_at_end()
            while await self._archive_some(lead):
                pass
            await self.heads.make_round()
        except EntriesGone as gone:
            raise Unavailable(str(gone)) from gone
        return ROUND_S

    async def _archive_some(self, lead: LeaderTerm) -> bool:
        """Archive one segment, if there is enough for it; returns whether to continue at once."""
        archived = self.reached
        if archived.tree is None and self._may_have_tree():
            archived = replace(archived, tree=LogTree(archived.index + 1))
        if self._group.committed.first_index > archived.index + 1:
            return await self._bridge(lead, archived)
        self._missed_since = None
        until = None
        if not await self._is_worth_it(archived.index):
            until = self.target.wanted_index
            if until <= archived.index:
                return False
        reached, size = await self._write_segment(archived, until)
        return await self._agree(lead, archived, reached) and size >= SEGMENT_BYTES

    async def _is_worth_it(self, index: int) -> bool:
        """Whether anything but archiving happened after entry `index`. Otherwise an idle cluster
        would archive the news of its own archiving for ever."""
        entries = await self._group.committed.after(index, _SMALL_BYTES)
        return any(not _only_archived(entry) for entry in entries) or (
            bool(entries) and entries[-1].index < self._group.committed.last_index
        )

    async def _write_segment(
        self,
        previous: Reached,
        until: int | None = None,
        max_bytes: int = SEGMENT_BYTES,
    ) -> tuple[Reached, int]:
        """Put a segment of the entries after `previous`, or of those up to entry `until`; returns
        its end and the size of its entries. Raises `EntriesGone`, `ColdError`."""
        target = self.target
        cluster_id = target.cluster_id()
        writer = SegmentWriter(target.group_id, previous.position, cluster_id, previous.tree)
        while writer.entries_size < max_bytes:
            entries = await self._group.committed.after(writer.last.index, READ_BYTES)
            if until is not None:
                entries = [entry for entry in entries if entry.index <= until]
            if not entries:
                break
            await self.target.run_blocking(_add, writer, entries)
        if writer.last.index == previous.index:
            return previous, 0
        segment = await self.target.run_blocking(writer.finish)
        await self.target.cold.put_verified(self.target.folder + segment.name, segment.content)
        return Reached.of(writer.last, writer.tree), writer.entries_size

    async def _agree(
        self,
        lead: LeaderTerm,
        previous: Reached,
        reached: Reached,
        *,
        has_gap: bool = False,
    ) -> bool:
        """Propose the archive's new end; returns whether the cluster has agreed on it."""
        assert reached.index >= previous.index
        if reached.index > previous.index:
            before, position = previous.position, reached.position
            command = Archived(lead.term, before, position, has_gap, reached.tree)
            await self._group.writes.propose(command)
        if self.archived != reached.position:
            return False
        await self._point_at_end()
        return True

    async def _point_at_end(self) -> None:
        """Put a pointer to the archive's end, so that the loss of its last objects shows.

        Only after the cluster has agreed on the end: a pointer never names an entry that the
        cluster may not have.
        """
        archived, history, target = self.archived, self.target.history, self.target
        if archived.index <= history.pointed_index:
            return
        end = make_end(ArchiveEnd(target.cluster_id(), target.group_id, archived))
        await target.cold.put(target.folder + end.name, end.content)
        history.pointed_index = archived.index
        self._pointed += 1
        if self._pointed % _POINTERS_KEPT == 1:
            await self._remove_pointers()

    async def _remove_pointers(self) -> None:
        """Remove all but the newest pointers to the end."""
        target = self.target
        folder = target.folder + group_folder(ENDS, target.group_id)
        listed = [info.name for info in await target.cold.page(folder)]
        names = [name.removeprefix(target.folder) for name in listed]
        await target.delete([name for name in names if EndName.parse(name)][:-_POINTERS_KEPT])

    # -- entries that this node lacks ---------------------------------------------------------

    async def archive_for(self, payload: bytes) -> bytes:
        """Archive the entries after a position for the leader; returns where they end. Both are
        `Reached`.

        Raises `Unavailable` if that is not possible now.
        """
        try:
            reached = previous = _REACHED.decode(payload)
            await self.target.fence.check()
            reached, _ = await self._write_segment(previous, max_bytes=_FOR_OTHERS_BYTES)
        except EntriesGone:
            pass
        except (ColdError, *UNDECODABLE) as error:
            raise Unavailable(str(error)) from error
        return msgspec.msgpack.encode(reached)

    async def _bridge(self, lead: LeaderTerm, archived: Reached) -> bool:
        """Ask other members for entries that this node's log no longer has."""
        others = self._group.view.configuration.members() - {self._group.view.node_id}
        silent = False
        for member in sorted(others):
            try:
                reached = await self._ask(member, archived)
            except (Unavailable, OutcomeUnknown) as error:
                log.info("a member cannot archive for the leader", member=member, error=str(error))
                silent = True
                continue
            if reached.index > archived.index:
                return await self._agree(lead, archived, reached)
        now = trio.current_time()
        self._missed_since = self._missed_since or now
        if silent and now - self._missed_since < PATIENCE_S:
            return False
        return await self._begin_after_gap(lead, archived)

    async def _ask(self, member: int, archived: Reached) -> Reached:
        assert self._ask_member is not None, "a node by itself has no other members"
        answer = await self._ask_member(member, msgspec.msgpack.encode(archived))
        try:
            return _REACHED.decode(answer)
        except UNDECODABLE as error:
            raise Unavailable(f"the pointer to the archive's end is damaged: {error}") from error

    async def _begin_after_gap(self, lead: LeaderTerm, archived: Reached) -> bool:
        """Continue after a checkpoint of the state, because no node has the next entries."""
        position = await self._checkpointer.begin_archive()
        if archived.index:
            log.error(
                "the archive has a gap: no node has these entries; it continues after a checkpoint "
                "of the state",
                first_missing=archived.index + 1,
                continues_after=position.index,
            )
        else:
            log.info("the archive begins after a checkpoint of the state", index=position.index)
        return await self._agree(lead, archived, Reached.of(position, None), has_gap=True)

    # -- status -----------------------------------------------------------------------------

    def report(self) -> dict[str, object]:
        """The status of the archive, as far as this node knows it."""
        archived, newest = self.archived, self.newest_checkpoint
        return {
            "archived_index": archived.index,
            "archived_time_ms": archived.time_ms,
            "lag_entries": self.lag_entries,
            "lag_bytes": self.lag_bytes,
            "lag_ms": self.lag_ms,
            "gaps": None if self.gaps is None else [list(gap) for gap in self.gaps],
            "log_cut_unarchived_index": self.cut_unarchived_index or None,
            "last_snapshot": {
                "index": newest.index if newest else None,
                "time_ms": newest.time_ms if newest else None,
            },
            "damaged_snapshots": self.damaged_checkpoints,
            "set_back": self.target.history.problem,
            "fenced_by": self.target.fence.restored_cluster_id,
        }

    @property
    def gaps(self) -> list[tuple[int, int]] | None:
        """Entries that are missing between others that can be restored, as the first and the last
        of each gap; None if that is not known: on a node that is not the leader, or has only just
        become it. A gap ends when everything before it has been removed for its age."""
        return self._checkpointer.gaps if self._group.view.leads else None

    @property
    def damaged_checkpoints(self) -> list[str] | None:
        """Names of manifests that cannot be read; None if `gaps` are not known."""
        return sorted(self._checkpointer.damaged) if self.gaps is not None else None

    @property
    def cut_unarchived_index(self) -> int:
        """The last entry that was cut from this node's log before it was archived; 0 if there is
        none, or the archive got past it. Derived from the log, so a restart changes nothing."""
        cut = self._group.committed.first_index - 1
        return cut if cut > self.archived.index else 0

    @property
    def newest_checkpoint(self) -> LogPosition | None:
        """The newest checkpoint's position; None if `gaps` are not known or there is none yet."""
        newest = self._checkpointer.newest if self._group.view.leads else None
        return newest if newest is not None and newest.index else None

    @property
    def lag_entries(self) -> int:
        return max(0, self._group.state.header.applied_index - self.archived.index)

    @property
    def lag_bytes(self) -> int:
        """About how much of the log is not archived; entries cut from it do not count."""
        return self._group.committed.size_after(self.archived.index)

    @property
    def lag_ms(self) -> int:
        """How much log time has passed since the last archived entry."""
        return max(0, self._group.state.header.log_ms - self.archived.time_ms)


def _add(writer: SegmentWriter, entries: list[Entry]) -> None:
    for entry in entries:
        writer.add(entry)


def _only_archived(entry: Entry) -> bool:
    if entry.kind != EntryKind.COMMANDS or len(entry.payload) > _SMALL_BYTES:
        return False
    return all(isinstance(command, Archived) for command in decode_batch(entry.payload).commands)
