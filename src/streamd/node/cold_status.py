"""The status of a node's cold store, as a report and as metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import trio

from streamd.backup.archive import Archive
from streamd.backup.publishing import Publisher
from streamd.backup.scrub import Scrubber
from streamd.node.node import Node
from streamd.process.metrics import Metrics
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.cold.packs import stored_packs
from streamd.tiering.tier import ColdTier, LeaderTerm, PeriodicTask


class Packs(NamedTuple):
    """How many packs there are, their size in bytes, and how many of them are garbage."""

    objects: int
    size: int
    dead: int


async def report(node: Node) -> dict[str, Any] | None:
    """The content of ``/cluster/cold``; None without a cold store. Raises `StorageFailed`.

    Bytes, packs and the archive are replicated. Only the node that does the work knows progress and
    errors: the leader, or each node for its own disk.
    """
    tier = node.cold_tier
    if tier is None:
        return None
    group, header, config = node.group, node.group.state.header, node.cold_config
    packs = await node.run_blocking(_sum_up, node.stores.state)
    oldest_ms = await node.run_blocking(_oldest_hot_ms, node.stores.state)
    return {
        "place": tier.cold.place,
        "unavailable_ms": _unavailable_ms(tier),
        "node_id": group.view.node_id,
        "leads": group.view.leads,
        "leader_id": group.view.leader_id or None,
        "leader_address": node.leader_address(),
        "term": group.view.term,
        "hot_bytes": header.hot_bytes,
        "hot_limit_bytes": config.hot_limit_bytes,
        "lag_ms": _lag_ms(node, oldest_ms),
        "flushed_bytes": header.flushed_bytes,
        "cold_bytes": header.cold_bytes,
        "packs": packs.objects,
        "pack_bytes": packs.size,
        "dead_packs": packs.dead,
        "local_bytes": node.evictor.held_bytes,
        "backpressure": backpressure(node),
        "flush": _flush(node),
        "gc": _gc(node),
        "archive": None if node.archive is None else node.archive.report(),
        "scrub": node.scrubber.report(),
        "tasks": {task.name: _task(task) for task in tasks(tier)},
        "last_error": _last_error(tier),
    }


def backpressure(node: Node) -> str | None:
    """Why the leader refuses appends now; None if it accepts them."""
    group = node.group
    if not group.admission.is_full:
        return None
    return (
        f"refused: {group.state.header.hot_bytes} bytes wait for the cold store, more than "
        f"cold.hot_limit_bytes ({node.cold_config.hot_limit_bytes})"
    )


def tasks(tier: ColdTier) -> list[PeriodicTask[[]] | PeriodicTask[[LeaderTerm]]]:
    """All tasks of the tier, for this node and for the cluster."""
    return [*tier.node_tasks, *tier.leader_tasks]


def _unavailable_ms(tier: ColdTier) -> int | None:
    """How long the store has not answered this node; None while it does."""
    away_s = tier.cold.health.away_s
    return None if away_s is None else round(away_s * 1000)


def _lag_ms(node: Node, oldest_ms: int | None) -> int | None:
    """About how long something has been waiting for the store."""
    return None if oldest_ms is None else max(0, node.group.now_ms() - oldest_ms)


def _flush(node: Node) -> dict[str, object]:
    flusher = node.flusher
    at_ms = flusher.flushed_ms
    return {
        "passes": flusher.passes,
        "packs": flusher.packs,
        "bytes": flusher.bytes,
        "stuck_bytes": flusher.stuck_bytes,
        "ago_ms": None if at_ms is None else max(0, node.group.now_ms() - at_ms),
    }


def _gc(node: Node) -> dict[str, object]:
    gc = node.cold_gc
    return {
        "rounds": gc.ended,
        "doing": gc.doing,
        "last": msgspec.to_builtins(gc.last),
        "total": msgspec.to_builtins(gc.total),
    }


def _task(task: PeriodicTask[[]] | PeriodicTask[[LeaderTerm]]) -> dict[str, object]:
    return {"error": task.error, "failures": task.failures, "ago_ms": _ago_ms(task)}


def _ago_ms(task: PeriodicTask[[]] | PeriodicTask[[LeaderTerm]]) -> int | None:
    """The time since a round of the task last succeeded."""
    return None if task.done_at is None else round((trio.current_time() - task.done_at) * 1000)


def _last_error(tier: ColdTier) -> dict[str, object] | None:
    for task in tasks(tier):
        if task.error is not None:
            return {"task": task.name, "message": task.error}
    return None


def _sum_up(store: StateStore) -> Packs:
    """Blocks."""
    objects = size = dead = 0
    for _, pack in stored_packs(store):
        objects += 1
        size += pack.size
        dead += not pack.live
    return Packs(objects, size, dead)


def _oldest_hot_ms(store: StateStore) -> int | None:
    """Blocks."""
    rows = store.scan(keys.HOT, keys.end_of(keys.HOT), limit=1)
    return keys.parse_hot(rows[0][0])[0] if rows else None


def export(node: Node, metrics: Metrics) -> None:
    """Register the metrics of the cold store, if there is one."""
    tier = node.cold_tier
    if tier is None:
        return
    gauge, header = metrics.gauge, node.group.state

    def of_each(value: Callable[[PeriodicTask[[]] | PeriodicTask[[LeaderTerm]]], float]) -> Values:
        return lambda: {task.name: value(task) for task in tasks(tier)}

    gauge(
        "cold_hot_bytes",
        "Bytes that are not in the cold store yet.",
        lambda: header.header.hot_bytes,
    )
    gauge(
        "cold_hot_limit_bytes",
        "Bytes not in the cold store above which appends are refused (cold.hot_limit_bytes).",
        lambda: node.cold_config.hot_limit_bytes,
    )
    gauge(
        "cold_bytes",
        "Bytes in the cold store that streams still refer to.",
        lambda: header.header.cold_bytes,
    )
    away = tier.cold.health
    gauge(
        "cold_unavailable",
        "1 if the cold store does not answer, else 0.",
        lambda: away.away_s is not None,
    )
    gauge(
        "cold_backpressure",
        "1 if appends are refused because the hot limit is reached, else 0.",
        lambda: node.group.admission.is_full,
    )
    gauge(
        "cold_stuck_bytes",
        "Bytes of records that are too large for any cold-store object.",
        lambda: node.flusher.stuck_bytes,
    )
    gauge(
        "cold_kept_bytes",
        "Flushed bytes that are still kept on the local disk.",
        lambda: node.evictor.held_bytes,
    )
    gauge(
        "cold_cache_bytes",
        "Bytes of cold-store objects in the read cache.",
        lambda: tier.reader.cached_bytes,
    )
    metrics.counter_by(
        "task", "cold_failures", "Failed rounds of each task of the cold store.", of_each(_failures)
    )
    metrics.gauge_by(
        "task",
        "cold_failing",
        "1 if the last round of a task of the cold store failed, else 0.",
        of_each(_fails),
    )
    metrics.counter_by(
        "what",
        "cold",
        "Work of the cold store done by this node, by kind.",
        lambda: _counts(node),
    )
    _export_scrub(node.scrubber, metrics)
    if node.archive is not None:
        _export_archive(node.archive, node.publishers, metrics)


def _export_scrub(scrubber: Scrubber, metrics: Metrics) -> None:
    """Register the metrics of the scrub."""
    gauge = metrics.gauge
    gauge(
        "cold_missing_objects",
        "Objects that are needed and missing from the cold store.",
        lambda: scrubber.scrub.missing_count,
    )
    gauge(
        "cold_damaged_objects",
        "Damaged objects found by the current pass of the scrub.",
        lambda: scrubber.scrub.damaged_count,
    )
    gauge(
        "cold_scrub_bytes",
        "Bytes read by the current pass of the scrub.",
        lambda: scrubber.scrub.size,
    )
    gauge("cold_scrub_passes", "Completed passes of the scrub.", lambda: scrubber.scrub.passes)
    gauge(
        "cold_scrub_last_pass_time_seconds",
        "Unix time at which the scrub last completed a pass.",
        lambda: scrubber.scrub.done_ms / 1000,
    )


def _export_archive(archive: Archive, publishers: Sequence[Publisher], metrics: Metrics) -> None:
    """Register the metrics of the archive. What only the leader knows is NaN elsewhere."""
    gauge = metrics.gauge
    gauge(
        "archive_index",
        "Index of the last log entry in the archive.",
        lambda: archive.archived.index,
    )
    gauge(
        "archive_lag_entries",
        "Log entries that are applied and not archived yet.",
        lambda: archive.lag_entries,
    )
    gauge(
        "archive_lag_bytes",
        "Bytes of log entries that are not archived yet.",
        lambda: archive.lag_bytes,
    )
    gauge(
        "archive_lag_seconds",
        "Seconds between the last archived entry and the last entry of the log.",
        lambda: archive.lag_ms / 1000,
    )
    gauge(
        "archive_last_segment_time_seconds",
        "Unix time of the last archived log entry.",
        lambda: archive.archived.time_ms / 1000,
    )
    gauge(
        "archive_last_snapshot_time_seconds",
        "Unix time of the newest state snapshot in the archive.",
        lambda: _snapshot_time_s(archive),
    )
    metrics.gauge_by(
        "target",
        "heads_published_time_seconds",
        "Unix time at which this node last sent a head of the log to a target.",
        lambda: {one.name: one.sent_at_s for one in publishers},
    )
    metrics.gauge_by(
        "alarm",
        "archive_alarm",
        "1 for each reason why the archive cannot restore the cluster.",
        lambda: _alarms(archive),
    )


def _snapshot_time_s(archive: Archive) -> float:
    newest = archive.newest_checkpoint
    return math.nan if newest is None else newest.time_ms / 1000


def _alarms(archive: Archive) -> dict[str, float]:
    return {
        "log_cut": archive.cut_unarchived_index > 0,
        "gap": math.nan if archive.gaps is None else len(archive.gaps) > 0,
        "snapshot_damaged": math.nan
        if archive.damaged_checkpoints is None
        else len(archive.damaged_checkpoints) > 0,
        "set_back": archive.target.history.problem is not None,
        "fenced": archive.target.fence.restored_cluster_id is not None,
    }


Values = Callable[[], dict[str, float]]


def _failures(task: PeriodicTask[[]] | PeriodicTask[[LeaderTerm]]) -> float:
    return task.failures


def _fails(task: PeriodicTask[[]] | PeriodicTask[[LeaderTerm]]) -> float:
    return task.error is not None


def _counts(node: Node) -> dict[str, float]:
    tier, gc = node.cold_tier, node.cold_gc.total
    assert tier is not None
    return {
        "flushed_packs": node.flusher.packs,
        "flushed_bytes": node.flusher.bytes,
        "dropped_bytes": node.evictor.evicted_bytes,
        "differing_slices": node.evictor.differing,
        "read_slices": tier.reader.misses,
        "cached_slices": tier.reader.hits,
        "damaged_reads": tier.reader.damaged,
        "retried_requests": tier.cold.health.retries,
        "outages": tier.cold.health.outages,
        "deleted_packs": gc.deleted_packs,
        "deleted_orphans": gc.deleted_orphans,
        "compacted_packs": gc.repacked_packs,
        "dropped_slices": gc.dropped_slices,
    }
