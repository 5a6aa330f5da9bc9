"""Whether another cluster has been restored from this one, or recovered from one of its nodes.

In that case the other cluster also uses the archive and the packs in this cluster's folder: nothing
there may be deleted any more, and what this cluster would add belongs to an abandoned history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog
import trio

from streamd.objectstore.errors import ColdError
from streamd.objectstore.names import FENCE, cluster_folder, fence_name
from streamd.tiering.async_store import AsyncObjectStore

log = structlog.get_logger("streamd.objectstore")

# Tasks run every second; one request in this time is enough for them.
_GOOD_FOR_S = 10.0


class FenceNote(msgspec.Struct, frozen=True):
    """The content of a fence: who was restored, as of which entry at most, and when by its
    clock."""

    cluster_id: str
    at_ms: int


class Fenced(ColdError):
    """Another cluster was restored from this one, which therefore no longer writes to the store."""


class Guard(Protocol):
    """Checked before the cluster's folder is changed; raises if it must not be changed."""

    async def check(self, *, deleting: bool = False) -> None:
        """Callers that are `deleting` check before each request."""


class Fence:
    """Call `check` before every round of writing to, or deleting from, the cluster's folder."""

    def __init__(
        self,
        cold: AsyncObjectStore,
        cluster_id: Callable[[], str],
        former_cluster_id: Callable[[], str] = lambda: "",
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """The cluster may get its id only when the node joins it. A cluster that was recovered from
        a former one fences that one off before it uses the store, in case the recovery did not."""
        self._cold = cold
        self._cluster_id = cluster_id
        self._former_cluster_id = former_cluster_id
        self._now_ms = now_ms
        self._has_fenced_former = False
        self._looked_at = 0.0
        self._looked = False
        self.restored_cluster_id: str | None = None

    @property
    def _folder(self) -> str:
        return cluster_folder(self._cluster_id())

    async def check(self, *, fresh: bool = False) -> None:
        """Raises `Fenced` if there is a fence, and `ColdError` if that cannot be found out.

        A result is valid for some seconds; `fresh` looks again, as callers that delete must.
        """
        stale = trio.current_time() - self._looked_at >= _GOOD_FOR_S
        await self._fence_off_former()
        if fresh or stale or not self._looked or self.restored_cluster_id is not None:
            await self._look()
        if self.restored_cluster_id is not None:
            raise Fenced(
                f"cluster {self.restored_cluster_id} was restored or recovered from this one: "
                "nothing is flushed, archived or deleted any more. Stop these nodes; if that was a "
                f"mistake, abandon that cluster, then 'streamd backup unfence --cluster "
                f"{self._cluster_id()} --restored {self.restored_cluster_id}'"
            )

    def forget(self) -> None:
        """Look again the next time."""
        self._looked = False

    async def _fence_off_former(self) -> None:
        former = self._former_cluster_id()
        if former and not self._has_fenced_former:
            if self._cluster_id() not in await fences_of(self._cold, former):
                await put_fence(self._cold, former, FenceNote(self._cluster_id(), self._now_ms()))
            self._has_fenced_former = True

    async def _look(self) -> None:
        prefix = f"{self._folder}{FENCE}"
        found = await self._cold.page(prefix, limit=1)
        before = self.restored_cluster_id
        self.restored_cluster_id = found[0].name.removeprefix(prefix) if found else None
        self._looked_at, self._looked = trio.current_time(), True
        if self.restored_cluster_id and before is None:
            log.error(
                "FENCED: another cluster was restored or recovered from this one; flushing, "
                "archiving and deleting have stopped",
                restored_cluster_id=self.restored_cluster_id,
            )


async def put_fence(cold: AsyncObjectStore, cluster_id: str, note: FenceNote) -> None:
    """Fence a cluster off its folder; a repetition does nothing. Raises `ColdError`."""
    name = f"{cluster_folder(cluster_id)}{fence_name(note.cluster_id)}"
    await cold.put_verified(name, msgspec.json.encode(note))


async def remove_fence(cold: AsyncObjectStore, cluster_id: str, restored_cluster_id: str) -> None:
    """Remove a fence; a repetition does nothing. Raises `ColdError`."""
    await cold.delete([f"{cluster_folder(cluster_id)}{fence_name(restored_cluster_id)}"])


async def fences_of(cold: AsyncObjectStore, cluster_id: str) -> list[str]:
    """The clusters that fenced this one off (at most 1,000). Raises
    `ColdError`."""
    prefix = f"{cluster_folder(cluster_id)}{FENCE}"
    return [found.name.removeprefix(prefix) for found in await cold.page(prefix)]
