"""Whether the archive in the store and the log of this node are one history.

A node that was set back to an old copy of its data directory has a log that ends before the archive
does, and then continues with a different history: objects that it would delete as unknown are
needed by others. The same holds for the majority of a cluster. So a leader looks before it flushes,
archives or deletes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec

import structlog
import trio

from streamd.backup.archived_objects import ArchivedObjects
from streamd.group.committed_log import EntriesGone
from streamd.group.group import Group
from streamd.group.proposals import Unavailable
from streamd.objectstore.catalog import Catalog, StoredSegment
from streamd.objectstore.errors import ColdError, ObjectCorrupt, ObjectMissing
from streamd.objectstore.segments import position_after, read_entries
from streamd.process.threads import RunBlocking
from streamd.raft.messages import Entry
from streamd.streams.model import LogPosition
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.fence import Fence

log = structlog.get_logger("streamd.objectstore")

# Tasks run every second; one look in this time is enough for those that do not delete.
_GOOD_FOR_S = 10.0
# A new leader usually applies the first entry of its own term within this time.
_APPLY_TIMEOUT_S = 5.0
_READ_BYTES = 1024 * 1024

P = ParamSpec("P")


class SetBack(ColdError):
    """The archive does not belong to this node's log, which was set back."""


class _Found:
    """Where the archive ends. `chain` is None if no readable object contains it."""

    def __init__(self, index: int, term: int = 0, chain: int | None = None) -> None:
        self.index = index
        self.term = term
        self.chain = chain


class History:
    """Compares the end of the archive with the leader's log: index, term and chain.

    The index alone would not do: a node that was set back and continues to write gets past the end
    of the archive with other entries. The whole archive is listed once in each term. After that
    only this node writes there, unless a copy of it runs elsewhere, whose pointer to the end shows.
    """

    def __init__(
        self,
        cold: AsyncObjectStore,
        group: Group,
        objects: Callable[[], ArchivedObjects],
        *,
        run: RunBlocking,
    ) -> None:
        self._cold = cold
        self._group = group
        self._objects = objects
        self._run_blocking = run
        self._lock = trio.Lock()
        self._term = 0
        self._looked_at = 0.0
        self._is_known = False
        # For operators: what is wrong, until another look finds that it no longer is.
        self.problem: str | None = None
        # The leader's, from its first look on: whether the cluster's folder has any archive, and
        # where the newest pointer to the end points.
        self.has_archive = False
        self.pointed_index = 0
        # Whether the pointer that this leader put there has disappeared.
        self.has_lost_end = False

    async def check(self, *, deleting: bool = False) -> None:
        """Raises `SetBack`; `Unavailable` while that cannot be decided; `ColdError`.

        A result is valid for some seconds, except for callers that are `deleting`.
        """
        async with self._lock:
            await self._begin_term()
            is_stale = trio.current_time() - self._looked_at >= _GOOD_FOR_S
            if deleting or is_stale or not self._is_known:
                await self._look()
        if self.problem is not None:
            raise SetBack(self.problem)
        if deleting and not self._is_known:
            raise Unavailable("this node's log begins after the end of the archive")

    async def _begin_term(self) -> None:
        """Forget what another term has shown, once an entry of this term is applied: then the state
        has everything that earlier leaders committed, and so everything that they archived."""
        group, header = self._group, self._group.state.header
        if not (group.view.leads and header.applied_term == group.view.term):
            await group.view.wait_for(
                lambda: group.view.leads and header.applied_term == group.view.term,
                _APPLY_TIMEOUT_S,
            )
        if not (group.view.leads and header.applied_term == group.view.term):
            raise Unavailable("this node is not the leader, or has only just become it")
        if group.view.term != self._term:
            self._term, self._is_known = group.view.term, False
            self.problem, self.has_archive, self.pointed_index = None, False, 0
            self.has_lost_end = False

    async def _look(self) -> None:
        objects, term = self._objects(), self._term
        ends = await objects.ends()
        is_lost = ends.end_index < self.pointed_index
        is_ours = not is_lost and ends.end_index <= self.pointed_index
        if self._is_known and self.problem is None and is_ours and self._agrees_with(ends):
            # Only this node has written since the whole archive was listed.
            self._looked_at = trio.current_time()
            return
        catalog = await objects.catalog()
        found = await self._end_of(objects, catalog)
        # A deposed leader that does not know it finds what its successor wrote.
        await self._group.reads.catch_up()
        if not self._group.view.leads or self._group.view.term != term:
            raise Unavailable("leadership has changed")
        is_same = await self._compare(objects, catalog, found)
        self._is_known, self._looked_at = is_same is not None, trio.current_time()
        self._note(None if is_same is not False else self._told(found))
        self.has_lost_end = is_lost and catalog.end_index < self.pointed_index
        self.has_archive = catalog.last_index > 0
        self.pointed_index = catalog.end_index

    def _agrees_with(self, ends: Catalog) -> bool:
        """Whether the newest pointer is at the position that all nodes agreed on, or before it."""
        archived = self._group.state.header.archived
        return all(
            one.parsed.log_index != archived.index
            or (one.parsed.term, one.parsed.chain) == (archived.term, archived.chain)
            for one in ends.ends
        )

    async def _end_of(self, objects: ArchivedObjects, catalog: Catalog) -> _Found:
        """The last entry that the archive mentions, with its position."""
        index = catalog.last_index
        ends = [one.parsed for one in catalog.ends if one.parsed.log_index == index]
        if ends:
            return _Found(index, ends[0].term, ends[0].chain)
        try:
            for segment in catalog.segments:
                if segment.parsed.last_index == index:
                    last = (await objects.head(segment)).last
                    return _Found(index, last.term, last.chain)
        except (ObjectCorrupt, ObjectMissing):
            pass
        return _Found(index)

    async def _compare(
        self, objects: ArchivedObjects, catalog: Catalog, found: _Found
    ) -> bool | None:
        """Whether this log has the entry at the end of the archive; None if no object shows it."""
        archived = self._group.state.header.archived
        if found.index > self._group.committed.last_index:
            return False
        if found.chain is None or found.index < archived.index:
            return True
        try:
            position = await self.position_at(found.index, archived)
            return (position.term, position.chain) == (found.term, found.chain)
        except EntriesGone:
            return await self._compare_entries(objects, catalog, found.index)

    async def position_at(self, index: int, archived: LogPosition) -> LogPosition:
        """The position of entry `index`, at or after `archived`, in the archive's chain, which
        need not be the chain of this node's log. Raises `EntriesGone`."""
        position = archived
        while position.index < index:
            entries = await self._group.committed.after(position.index, _READ_BYTES)
            wanted = [entry for entry in entries if entry.index <= index]
            if not wanted:
                raise EntriesGone(f"entry {position.index + 1} is not in the log")
            group_id = self._objects().group_id
            position = await self._run_blocking(position_after, position, group_id, wanted)
        if position.index > index:
            raise EntriesGone(
                f"entry {index} precedes entry {position.index}, which is already archived"
            )
        return position

    async def _compare_entries(
        self, objects: ArchivedObjects, catalog: Catalog, index: int
    ) -> bool | None:
        """The log begins after the agreed end of the archive: check that the entries that both have
        are the same."""
        first = self._group.committed.first_index
        segments = [one for one in catalog.segments if one.parsed.last_index == index]
        if first > index or not segments:
            return None
        try:
            archived = await self._entries_from(objects, segments[-1], first)
        except (ObjectCorrupt, ObjectMissing):
            return None
        for entry in archived:
            try:
                own = await self._group.committed.after(entry.index - 1, 1)
            except EntriesGone:
                return None
            if not own:
                return None
            if own[0] != entry:
                return False
        return True

    async def _entries_from(
        self, objects: ArchivedObjects, segment: StoredSegment, first: int
    ) -> list[Entry]:
        content = await objects.segment(segment)
        return await self._run_blocking(_entries, content, first)

    def _told(self, found: _Found) -> str:
        last, objects = self._group.committed.last_index, self._objects()
        how = (
            f"its log ends at entry {last}, before the archive's end at entry {found.index}"
            if found.index > last
            else f"entry {found.index} of its log does not match the archive's last entry"
        )
        return (
            f"this node was set back: {how} in {self._cold.place}, cluster {objects.cluster_id}. "
            "Nothing is flushed, archived or deleted. Stop this node; 'streamd restore --cluster "
            f"{objects.cluster_id}' into another directory restores what is archived. To continue "
            "from here without that instead: 'streamd recover --offline' makes this a new cluster"
        )

    def _note(self, problem: str | None) -> None:
        if problem is not None and self.problem is None:
            log.error(
                "SET BACK: the archive has entries that this node's log lacks", problem=problem
            )
        if problem is None and self.problem is not None:
            log.warning("the archive matches this node's log again; flushing and archiving resume")
        self.problem = problem


class Guard:
    """Checked before every round of writing to, or deleting from, the cluster's folder: whether
    another cluster was restored from this one, and whether the archive belongs to this log."""

    def __init__(self, fence: Fence, history: History) -> None:
        self._fence = fence
        self._history = history

    async def check(self, *, deleting: bool = False) -> None:
        """Raises `Fenced` or `SetBack`; `Unavailable` or `ColdError` if that cannot be found out.

        Callers that are `deleting` check before each request, which they then make at once, and
        once.
        """
        await self._history.check(deleting=deleting)
        await self._fence.check(fresh=deleting)

    def guarded(self, make_round: Callable[P, Awaitable[float]]) -> Callable[P, Awaitable[float]]:
        """A round that is only made if nothing forbids it."""

        async def make(*args: P.args, **kwargs: P.kwargs) -> float:
            await self.check()
            return await make_round(*args, **kwargs)

        return make


def _entries(content: bytes, first: int) -> list[Entry]:
    return [entry for entry, _ in read_entries(content) if entry.index >= first]
