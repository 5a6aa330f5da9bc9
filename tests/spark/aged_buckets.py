"""Buckets with a history: clusters that failed and recovered, removed, merged, and were
restored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import trio
from msgspec.structs import replace

from streamd.backup.restore import Restored
from streamd.process.threads import in_thread
from streamd.tiering.tier import open_cold
from tests.backup.test_archive import a_round
from tests.http.serving import serving, until
from tests.jepsen_like.cluster_processes import ClusterProcesses, NodeProcess, wait_until
from tests.jepsen_like.workload import pause_leader, under_load
from tests.spark.buckets import MINUTE_MS, Author, Place
from tests.support.archived import restored

# A third of a second: everything older than the newest state is removed at once.
_RETENTION_H = 0.0001
_MERGE_OF = 20
# Log time never goes back, so each life begins after the one before it.
_DAY_MS = 24 * 60 * MINUTE_MS


@contextmanager
def _cluster_under_faults(directory: Path, place: Place) -> Iterator[ClusterProcesses]:
    minio = place.minio
    environment = {
        "STREAMD_COLD_BACKEND": "s3",
        "STREAMD_COLD_S3_BUCKET": place.bucket,
        "STREAMD_COLD_S3_PREFIX": place.prefix,
        "STREAMD_COLD_S3_ENDPOINT": minio.endpoint,
        "STREAMD_COLD_S3_ACCESS_KEY_ID": minio.access_key_id,
        "STREAMD_COLD_S3_SECRET_ACCESS_KEY": minio.secret_access_key,
        "STREAMD_COLD_FLUSH_AFTER_MS": "400",
        "STREAMD_COLD_PACK_BYTES": "65536",
        "STREAMD_COLD_HOT_KEEP_BYTES": "1",
        "STREAMD_COLD_GC_INTERVAL_MS": "300",
        "STREAMD_COLD_GC_GRACE_MS": "300",
        "STREAMD_COLD_SNAPSHOT_INTERVAL_MINUTES": "0.05",
    }
    with ClusterProcesses(directory, environment=environment) as cluster:
        yield cluster


def write_under_faults(directory: Path, place: Place) -> None:
    """Three nodes under the clients of the Jepsen-like tests: leaders are killed, stand still and
    are cut off; in the end all nodes are killed at once."""
    with _cluster_under_faults(directory, place) as cluster:
        with under_load(cluster) as work:
            work.work()
            leader = cluster.leader()
            leader.kill()
            cluster.leader(but=leader.node_id)
            work.wait_writes_elsewhere(leader.node_id)
            leader.start()
            cluster.wait_ready()
            pause_leader(cluster, work)
            leader = cluster.leader()
            cluster.links.isolate(leader.node_id, set(cluster.nodes) - {leader.node_id})
            cluster.leader(but=leader.node_id)
            work.wait_writes_elsewhere(leader.node_id)
            work.work()
        _wait_archived(cluster)


def _wait_archived(cluster: ClusterProcesses) -> None:
    """Wait until the archive has nearly all, and a state."""

    def is_archived(node: NodeProcess) -> bool:
        answer = node.get("/cluster/cold")
        if answer is None or answer[0] != 200:
            return False
        archive = json.loads(answer[1])["archive"]
        return archive["lag_entries"] <= 5 and archive["last_snapshot"]["index"] is not None

    leader = cluster.leader()
    wait_until(lambda: is_archived(leader), "nearly all is archived")


class Worn(Exception):
    """The cluster did not do what the bucket needs."""


async def write_worn(directory: Path, place: Place) -> Restored:
    """A cluster that removes and merges what it can, under two leaders, and is restored as another
    one, which does the same and moves the live slices of its ancestor's packs."""
    settings = {
        "archive_retention_hours": _RETENTION_H,
        "gc_grace_ms": 1,
        "gc_interval_ms": 50,
    }
    cold_config = place.cold(**settings)
    async with serving(directory / "old", cold=cold_config) as server, server.client() as http:
        author = Author(server, http)
        await _live(author, "first")
        await _remove(author, place)
    async with serving(directory / "old", cold=cold_config) as server, server.client() as http:
        server.clock.ahead_ms = _DAY_MS
        author = Author(server, http)
        await _live(author, "second")
        await author.lines("/worn/kept-first", 3)
        await author.flushed()
        await _merge(author, place)
        await _last(author, "second")
    (directory / "new").mkdir()
    cold = await open_cold(
        replace(cold_config), directory, run_blocking=in_thread, random=Random(2)
    )
    try:
        done = await restored(cold, directory / "new" / "data")
    finally:
        await in_thread(cold.close)
    for days, life in enumerate(("third", "fourth"), start=2):
        async with serving(directory / "new", cold=cold_config) as server, server.client() as http:
            server.clock.ahead_ms = days * _DAY_MS
            author = Author(server, http)
            await _live(author, life)
            await author.lines("/worn/kept-second", 3)
            await author.ask("DELETE", "/worn/kept-first", expect=(204, 404))
            await author.flushed()
            await _remove(author, place)
            await _last(author, life)
    return done


async def write_on(directory: Path, place: Place) -> None:
    """Let the node of a stopped `serving` continue: it flushes, merges segments, writes a state,
    and removes everything older, packs included."""
    config = place.cold(archive_retention_hours=_RETENTION_H, gc_grace_ms=1, gc_interval_ms=50)
    async with serving(directory, cold=config) as server, server.client() as http:
        server.clock.ahead_ms = _DAY_MS
        author = Author(server, http)
        await author.lines("/agents/chat", 5)
        await author.ask("DELETE", "/agents/story")
        await author.flushed()
        await author.ask("PUT", "/worn")
        await author.create("/worn/tick")
        await _merge(author, place)
        await _remove(author, place)


async def _last(author: Author, life: str) -> None:
    """Commands between the two remaining states, which are compared with the newer one."""
    await _live(author, f"{life}-last")
    await a_round(author.node, "garbage")
    await author.lines(f"/worn/kept-{life}", 3)
    await author.snapshot()


async def _live(author: Author, life: str) -> None:
    """Streams that stay, streams that go, and forks of both."""
    await author.ask("PUT", "/worn", expect=(201, 200, 409))
    await author.create(f"/worn/kept-{life}")
    await author.lines(f"/worn/kept-{life}", 12)
    await author.create(f"/worn/doomed-{life}")
    await author.lines(f"/worn/doomed-{life}", 60)
    await author.create(f"/worn/gone-{life}")
    gone = await author.lines(f"/worn/gone-{life}", 20)
    await author.create(
        f"/worn/fork-{life}", Stream_Forked_From=f"/worn/gone-{life}", Stream_Fork_Offset=gone[7]
    )
    await author.create(f"/worn/trimmed-{life}")
    trimmed = await author.lines(f"/worn/trimmed-{life}", 15)
    await author.flushed()
    await author.archived()
    await author.lines(f"/worn/fork-{life}", 4)
    await author.ask("PUT", f"/worn/trimmed-{life}/snapshot/{trimmed[9]}", b"ten")
    await author.ask("DELETE", f"/worn/gone-{life}")
    await author.ask("DELETE", f"/worn/doomed-{life}")
    await author.append(f"/worn/trimmed-{life}", b"closed\n", Stream_Closed="true")
    await author.flushed()


async def _remove(author: Author, place: Place) -> None:
    """Wait until packs, and everything older than the retention, are removed from the store."""
    before = {name for name in _names(place) if "/packs/" in name}
    for number in range(60):
        await author.create("/worn/tick")
        await author.append("/worn/tick", b"tick %d\n" % number)
        await author.snapshot()
        await a_round(author.node, "garbage")
        now = set(_names(place))
        if before - now:
            return
        await trio.sleep(0.2)
    raise Worn("no pack was removed")


async def _merge(author: Author, place: Place) -> None:
    """Wait until small segments were merged into a large one."""
    for _ in range(_MERGE_OF):
        await author.append("/worn/tick", b"tock\n")
        await author.archived()
    before = {name for name in _names(place) if "/log/" in name}
    await a_round(author.node, "merge")
    await until(lambda: len(before - set(_names(place))) >= 16)


def _names(place: Place) -> list[str]:
    listed = place.minio.client().list_objects(place.bucket, f"{place.prefix}/", recursive=True)
    return [str(one.object_name) for one in listed]
