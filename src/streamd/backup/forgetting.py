"""Removal of a cluster's folder from the store: that of a drill, or of a cluster long gone."""

from __future__ import annotations

from random import SystemRandom

import msgspec

from streamd.backup.archived_objects import list_all
from streamd.backup.base import RestoreRefused
from streamd.backup.clusters import known_clusters
from streamd.objectstore.names import CHECKPOINTS, CHECKS, cluster_folder
from streamd.objectstore.objects import MAX_PAGE, ObjectInfo
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.fence import fences_of

# A cluster that serves writes archives within seconds.
_QUIET_MS = 10 * 60_000


class Folder(msgspec.Struct, frozen=True):
    """What a cluster has in the store: objects and bytes by kind, such as ``packs``."""

    cluster_id: str
    objects: dict[str, int]
    bytes: dict[str, int]


async def inspect(cold: AsyncObjectStore, cluster_id: str) -> tuple[Folder, list[str]]:
    """What a removal would delete, and the names in the order of the removal.

    Raises `RestoreRefused` if the folder may still be needed: it is the only one of the store,
    another cluster was restored from it, or an object in it is younger than ten minutes, by the
    store's own clock. Raises `ColdError`.
    """
    if await known_clusters(cold, None) == [cluster_id]:
        raise RestoreRefused(
            f"cluster {cluster_id} is the only one in {cold.place}: if you want none of it, delete "
            "the bucket or the directory itself"
        )
    await known_clusters(cold, cluster_id)
    if fences := await fences_of(cold, cluster_id):
        raise RestoreRefused(
            f"cluster {', '.join(fences)} was restored from cluster {cluster_id} and uses its "
            "packs: forget that one first, then remove the fence (streamd backup unfence)"
        )
    found = await list_all(cold, cluster_folder(cluster_id))
    newest = max(found, key=lambda info: info.modified_ms)
    age_ms = await _now_ms(cold) - newest.modified_ms
    if age_ms < _QUIET_MS:
        raise RestoreRefused(
            f"cluster {cluster_id} wrote {newest.name} {max(age_ms, 0) // 1000} s ago: it may "
            "still run. Stop its nodes for good, and repeat this ten minutes later"
        )
    return _folder(cluster_id, found), _in_order(cluster_id, found)


async def remove(cold: AsyncObjectStore, names: list[str]) -> None:
    """Delete what `inspect` has named; may be repeated. Raises `ColdError`."""
    for start in range(0, len(names), MAX_PAGE):
        await cold.delete_now(names[start : start + MAX_PAGE])


def _in_order(cluster_id: str, found: list[ObjectInfo]) -> list[str]:
    """Checkpoints first: what is left of an interrupted removal must not look restorable."""
    first = f"{cluster_folder(cluster_id)}{CHECKPOINTS}"
    return sorted((info.name for info in found), key=lambda name: not name.startswith(first))


def _folder(cluster_id: str, found: list[ObjectInfo]) -> Folder:
    objects: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for info in found:
        kind = info.name.removeprefix(cluster_folder(cluster_id)).partition("/")[0]
        objects[kind] = objects.get(kind, 0) + 1
        sizes[kind] = sizes.get(kind, 0) + info.size
    return Folder(cluster_id, objects, sizes)


async def _now_ms(cold: AsyncObjectStore) -> int:
    """The time by the clock of the store, in ms since the epoch."""
    name = f"{CHECKS}{SystemRandom().getrandbits(64):016x}"
    await cold.put(name, b"streamd asks for the time")
    try:
        [found] = await cold.page(name)
        return found.modified_ms
    finally:
        await cold.delete_now([name])
