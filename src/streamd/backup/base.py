"""Where a restore begins: the newest suitable checkpoint that is whole.

If one is damaged, an older one replaces it, or the empty state before the first entry, from which
the log leads to the same end. A checkpoint is never exchanged for a different end.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import structlog

from streamd.backup.archived_objects import ArchivedObjects
from streamd.objectstore.catalog import Catalog, Range, StoredManifest
from streamd.objectstore.errors import ObjectCorrupt, ObjectMissing
from streamd.objectstore.segments import read_entries

log = structlog.get_logger("streamd.objectstore")

# As milliseconds since the epoch this is March 1973, as seconds far in the future.
_SECONDS_BELOW = 100_000_000_000


class RestoreRefused(Exception):
    """The requested state cannot be restored, or not into there; the message says what can be."""


class Choice(msgspec.Struct, frozen=True):
    """What to restore: the state as of entry `index`, or of the log time `at_ms` (milliseconds
    since the epoch), or else the newest. If there are several clusters, one must be named."""

    cluster_id: str | None = None
    index: int | None = None
    at_ms: int | None = None


class Base(msgspec.Struct, frozen=True):
    """The state as of entry `index`; its manifest, unless it is the empty one; how far to replay
    at most. `given_up` holds each checkpoint that was rejected and what is wrong with it."""

    index: int
    manifest: StoredManifest | None
    until_index: int
    given_up: Mapping[str, str]


async def choose_base(
    source: ArchivedObjects, catalog: Catalog, choice: Choice, given_up: Mapping[str, str]
) -> Base:
    """The newest suitable base, except those known to be damaged (`given_up`, by name).

    Raises `RestoreRefused`, `ColdError`.
    """
    known = dict(given_up)
    bases: list[tuple[int, StoredManifest | None]] = (
        [(0, None)] if catalog.begins_at_nothing else []
    )
    bases += [(manifest.parsed.log_index, manifest) for manifest in catalog.manifests]
    if not bases:
        raise RestoreRefused(f"cluster {source.cluster_id} has no restore point")
    for index, manifest in reversed(bases):
        reach = catalog.reach(index)
        if choice.index is not None and not max(index, 1) <= choice.index <= reach:
            continue
        if manifest is not None and not await _serves(source, manifest, choice, known):
            continue
        if choice.index is not None:
            return Base(index, manifest, choice.index, known)
        if choice.at_ms is not None:
            # The empty state suits no time: an operator who names one never means it.
            if manifest is None and choice.at_ms < await first_command_ms(source, catalog):
                break
            await _refuse_gap(source, catalog, index, reach, choice.at_ms)
        elif reach < bases[-1][0]:
            raise RestoreRefused(
                f"the state as of entry {bases[-1][0]} and later cannot be restored: "
                f"{_described(known)}. Older ones lead only to entry {reach}, "
                "because the archive has a "
                f"gap there: ask for that with --index {reach}"
            )
        elif reach < catalog.end_index:
            raise RestoreRefused(
                f"the archive reached entry {catalog.end_index}, and its last objects are missing: "
                f"entries {reach + 1} to {catalog.end_index} cannot be restored. What is left "
                f"leads to entry {reach}: ask for that with --index {reach}"
            )
        return Base(index, manifest, reach, known)
    refusal = f"cluster {source.cluster_id} cannot be restored to that time"
    if known:
        raise RestoreRefused(f"{refusal}, because of damage: {_described(known)}")
    ranges = await format_ranges(source, catalog)
    raise RestoreRefused(f"{refusal}; it can be restored to {ranges}")


async def check_time(source: ArchivedObjects, catalog: Catalog, at_ms: int, now_ms: int) -> None:
    """Raises `RestoreRefused` for a time later than both now and everything archived: that is
    never meant."""
    ranges = catalog.ranges()
    last_ms = (await _times_of(source, catalog, ranges[-1]))[1] if ranges else None
    if at_ms > max(now_ms, last_ms or 0):
        raise RestoreRefused(
            f"{format_time(at_ms)} has not come yet; cluster {source.cluster_id} can be restored "
            f"to {await format_ranges(source, catalog)}"
        )


def check_not_seconds(at_ms: int) -> None:
    """Raises `RestoreRefused` for a number that is a time of today only if it is in seconds."""
    if 0 < at_ms < _SECONDS_BELOW:
        raise RestoreRefused(
            f"--at {at_ms} is {format_time(at_ms)}, in milliseconds since the epoch. In seconds it "
            f"would be {format_time(at_ms * 1000)}: ask for --at {at_ms * 1000}, or give a date"
        )


async def format_ranges(source: ArchivedObjects, catalog: Catalog) -> str:
    """What can be restored, in words. Raises `ColdError`."""
    told: list[str] = []
    for found in catalog.ranges():
        times = await _times_of(source, catalog, found)
        first, last = ("?" if time_ms is None else format_time(time_ms) for time_ms in times)
        told.append(f"entries {max(found.first, 1)} to {found.last}, {first} to {last}")
    return "; ".join(told) or "nothing"


def format_time(time_ms: int) -> str:
    """A log time in words; a number if it is beyond the calendar."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _times_of(
    source: ArchivedObjects, catalog: Catalog, found: Range
) -> tuple[int | None, int | None]:
    """The log times of a range's first and last state, None if the object with it is damaged."""
    first_ms = last_ms = None
    stored = next((one for one in catalog.manifests if one.parsed.log_index == found.first), None)
    path = catalog.path(found.first)
    with suppress(ObjectCorrupt, ObjectMissing):
        if stored is not None:
            first_ms = last_ms = (await source.manifest(stored)).of.time_ms
        else:
            first_ms = await first_command_ms(source, catalog)
    if path:
        last_ms = None
        with suppress(ObjectCorrupt, ObjectMissing):
            last_ms = (await source.head(path[-1])).last.time_ms
    return first_ms, last_ms


async def first_command_ms(source: ArchivedObjects, catalog: Catalog) -> int:
    """The log time of the first command in a log that begins at entry 1. Raises `ColdError`."""
    for segment in catalog.path(0):
        head = await source.head(segment)
        if head.first_time_ms or head.last.time_ms:
            positions = (position for _, position in read_entries(await source.segment(segment)))
            return next(position.time_ms for position in positions if position.time_ms)
    raise RestoreRefused(
        f"cluster {source.cluster_id} has only its founding entries in the archive"
    )


def note_damage(known: Mapping[str, str], name: str, error: Exception) -> dict[str, str]:
    """Add a damaged checkpoint to those `known`, and tell the operator."""
    log.error(
        "A CHECKPOINT IN THE COLD STORE IS DAMAGED; an older checkpoint and the log replace it, "
        "if there are any",
        manifest=name,
        error=str(error),
    )
    return {**known, name: str(error)}


async def _serves(
    source: ArchivedObjects, stored: StoredManifest, choice: Choice, known: dict[str, str]
) -> bool:
    """Whether a checkpoint is neither known to be damaged nor too new; adds to those known."""
    if stored.name in known:
        return False
    if choice.at_ms is None:
        return True
    try:
        return (await source.manifest(stored)).of.time_ms <= choice.at_ms
    except (ObjectCorrupt, ObjectMissing) as error:
        known |= note_damage(known, stored.name, error)
        return False


async def _refuse_gap(
    source: ArchivedObjects, catalog: Catalog, base: int, reach: int, at_ms: int
) -> None:
    """Raises `RestoreRefused` when entries older than `at_ms` may be missing after `reach`."""
    later = [one for one in catalog.manifests if one.parsed.log_index > reach]
    path = catalog.path(base)
    if not (later or reach < catalog.end_index):
        return
    if path and (await source.head(path[-1])).last.time_ms > at_ms:
        return
    last = later[0].parsed.log_index if later else catalog.end_index
    raise RestoreRefused(
        f"the archive has a gap at that time: entries {reach + 1} to {last} are missing. "
        f"Restore to entry {reach}" + (f", or to {last} and later" if later else "")
    )


def _described(known: Mapping[str, str]) -> str:
    return "; ".join(f"{name} ({why})" for name, why in known.items())
