"""Checks of the cold store and of the archive in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamd.commands.doctor.findings import Examined, Finding, fail, ok, size, span, warn

_HALF = 0.5
_LAG_S = 60
_LATE_S = 3600
# How many intervals may pass before a checkpoint or a scrub is missed.
_INTERVALS = 2


def access(examined: Examined) -> Iterator[Finding]:
    """Whether each node can write, read, list and delete in the cold store."""
    for node, facts in examined.nodes.items():
        store = facts.store
        if store is not None and store.error is not None:
            text = f"{store.error}"
            yield fail(text, node, "check the section [cold], its credentials and the bucket")
        elif store is not None:
            yield ok(f"{store.place} can be written, read, listed and deleted from", node)


def hot(examined: Examined) -> Iterator[Finding]:
    """Whether bytes reach the store before appends are refused."""
    if examined.cold is None:
        return
    found, limit = examined.cold["hot_bytes"], examined.cold["hot_limit_bytes"]
    text = f"{size(found)} wait for the store, {size(limit)} are allowed (cold.hot_limit_bytes)"
    if examined.cold["backpressure"]:
        yield fail(f"{text}: appends are refused", cure="streamd cold status")
    elif found > _HALF * limit:
        yield warn(text, cure="streamd cold status")
    else:
        yield ok(text)


def work(examined: Examined) -> Iterator[Finding]:
    """Whether the leader's work for the store succeeds."""
    if examined.cold_error is not None:
        yield fail(f"there is no report of it: {examined.cold_error}", cure="streamd cold status")
    if examined.cold is None:
        return
    failing = {name: task["error"] for name, task in examined.cold["tasks"].items()}
    errors = {name: error for name, error in failing.items() if error is not None}
    for name, error in errors.items():
        yield warn(f"{name}: {error}", cure="streamd cold status")
    if not errors:
        yield ok("all tasks of the leader succeed")


def lag(examined: Examined) -> Iterator[Finding]:
    """How much would be lost with all nodes."""
    archive = _archive(examined)
    if archive is None:
        return
    lag_s = archive["lag_ms"] / 1000 if archive["lag_entries"] else 0.0
    text = f"{archive['lag_entries']} entries, {span(lag_s)} of the log, are not archived"
    if lag_s > _LATE_S:
        yield fail(text, cure="streamd cold status")
    elif lag_s > _LAG_S:
        yield warn(text, cure="streamd cold status")
    else:
        yield ok(text)


def alarms(examined: Examined) -> Iterator[Finding]:
    """Whether the archive can restore the cluster."""
    archive = _archive(examined)
    if archive is None:
        return
    found = [f"entries {first} to {last} are missing" for first, last in archive["gaps"] or []]
    found += [f"{name} is damaged" for name in archive["damaged_snapshots"] or []]
    if archive["log_cut_unarchived_index"]:
        cut = archive["log_cut_unarchived_index"]
        found.append(f"the log was cut up to entry {cut} before it was archived")
    if archive["set_back"]:
        found.append(str(archive["set_back"]))
    if archive["fenced_by"]:
        found.append(f"cluster {archive['fenced_by']} was restored from this one and fenced it")
    for text in found:
        yield fail(text, cure="streamd backup verify")
    if not found:
        yield ok("the archive has no gap and no damage")


def restore_point(examined: Examined) -> Iterator[Finding]:
    """Which point a restore begins from, and when all objects were last read and verified."""
    archive = _archive(examined)
    if archive is None or examined.cold is None:
        return
    newest, scrub = archive["last_snapshot"], examined.cold["scrub"]
    settings = [facts.machine.settings for facts in examined.nodes.values()]
    interval_ms = max((one.snapshot_interval_ms for one in settings), default=0)
    if newest["index"] is None:
        yield warn("the leader knows of no checkpoint yet", cure="streamd cold status")
    else:
        age_ms = archive["archived_time_ms"] - newest["time_ms"]
        text = f"the newest checkpoint is as of entry {newest['index']}"
        text += f", {span(max(0, age_ms) / 1000)} of the log before the archive's end"
        late = interval_ms and age_ms > _INTERVALS * interval_ms
        yield warn(text, cure="streamd cold status") if late else ok(text)
    lost = scrub["missing_objects"] + scrub["damaged_objects"]
    done_ms = scrub["last_pass_time_ms"]
    every_ms = max((one.scrub_interval_ms for one in settings), default=0)
    if lost:
        yield fail(f"{lost} objects are missing or damaged", cure="streamd cold scrub status")
    elif done_ms is None:
        text = "not all objects have been read and verified yet"
        yield warn(text, cure="streamd cold scrub start --wait")
    else:
        ago_ms = examined.now_ms - done_ms
        text = f"all objects were last read and verified {span(max(0, ago_ms) / 1000)} ago"
        late = every_ms and ago_ms > _INTERVALS * every_ms
        yield warn(text, cure="streamd cold scrub start --wait") if late else ok(text)


def _archive(examined: Examined) -> Any:
    return None if examined.cold is None else examined.cold["archive"]
