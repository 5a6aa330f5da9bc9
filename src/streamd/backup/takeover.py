"""A new cluster takes over the objects in the folder of its former cluster.

The former cluster may still be alive somewhere, or come back. A fence keeps it from deleting; but
one of its leaders may have looked a moment before, and be sending a deletion just now. So the
objects that the new cluster refers to are looked for once that moment is over.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from streamd.backup.archived_objects import list_all
from streamd.objectstore.names import PACKS, cluster_folder, cluster_of
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.fence import FenceNote, put_fence

# A leader deletes at once after a look, in one request: the next one needs another look.
SETTLE_S = 2.0


async def fence_off(
    cold: AsyncObjectStore, former_cluster_id: str, note: FenceNote, *, settle_s: float = SETTLE_S
) -> None:
    """Keep a cluster from changing its folder; returns when it has noticed. Raises `ColdError`."""
    await put_fence(cold, former_cluster_id, note)
    await trio.sleep(settle_s)


async def missing_packs(cold: AsyncObjectStore, wanted: Iterable[str]) -> list[str]:
    """Those of the packs, by full name, that the store lacks. Raises `ColdError`."""
    names = set(wanted)
    for cluster_id in {cluster_of(name) for name in names}:
        if cluster_id is not None:
            found = await list_all(cold, cluster_folder(cluster_id) + PACKS)
            names -= {info.name for info in found}
    return sorted(names)
