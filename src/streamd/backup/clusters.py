"""Finds the clusters of a cold store, and the one that a command means."""

from __future__ import annotations

from streamd.backup.archived_objects import list_clusters
from streamd.backup.base import Choice, RestoreRefused
from streamd.objectstore.names import cluster_of
from streamd.process.redaction import shown
from streamd.tiering.async_store import AsyncObjectStore


async def choose_cluster(cold: AsyncObjectStore, choice: Choice) -> str:
    """The cluster to restore. Raises `RestoreRefused`, `ColdError`."""
    clusters = await known_clusters(cold, choice.cluster_id)
    if len(clusters) > 1:
        raise RestoreRefused(
            f"{cold.place} holds several clusters; choose one with --cluster: {', '.join(clusters)}"
        )
    return clusters[0]


async def known_clusters(cold: AsyncObjectStore, wanted: str | None) -> list[str]:
    """The clusters that the store has, or the wanted one. Raises `RestoreRefused` if nothing of it
    is there: the bucket, prefix or id is wrong."""
    clusters = await list_clusters(cold)
    if not clusters:
        raise RestoreRefused(f"{cold.place} holds no cluster{await _hint(cold)}")
    if wanted is None:
        return clusters
    if wanted not in clusters:
        raise RestoreRefused(
            f"{cold.place} does not hold cluster {shown(wanted)!r}; it holds {', '.join(clusters)}"
        )
    return [wanted]


async def _hint(cold: AsyncObjectStore) -> str:
    """A hint at a cluster that a mistyped prefix misses."""
    for found in await cold.page("", limit=1):
        first, _, rest = found.name.partition("/")
        deeper = cluster_of(rest)
        if deeper is not None:
            return f"; cluster {deeper} is below {first}/: is the prefix right?"
        return f", but other objects such as {shown(found.name)!r}: is the prefix right?"
    return ": is the bucket right, and the prefix?"
