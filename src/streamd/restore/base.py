"""What a restore begins with: the newest snapshot of the state that serves, and is whole.

One that is damaged is given up for an older one, or for the empty state before the first entry,
from which the log leads to the same end. It is never given up for another end.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import structlog

from streamd.archive.objects import ArchivedObjects
from streamd.cold.catalog import Catalog, StoredManifest
from streamd.cold.errors import ObjectCorrupt, ObjectMissing

log = structlog.get_logger("streamd.cold")


class RestoreRefused(Exception):
    """What is asked cannot be restored, or not there; the message says what can."""


class Choice(msgspec.Struct, frozen=True):
    """What to restore: the state as of entry `index`, or of the log time `at_ms` (milliseconds
    since the epoch), or else the newest. The cluster must be named where there are several."""

    cluster_id: str | None = None
    index: int | None = None
    at_ms: int | None = None


class Base(msgspec.Struct, frozen=True):
    """The state as of entry `index`; its manifest, if it is not the empty one; how far to replay
    at most. `given_up` says of each snapshot that was not taken what is wrong with it."""

    index: int
    manifest: StoredManifest | None
    until_index: int
    given_up: Mapping[str, str]


async def choose_base(
    source: ArchivedObjects, catalog: Catalog, choice: Choice, given_up: Mapping[str, str]
) -> Base:
    """The newest base that serves, but for those known to be damaged (`given_up`, by name).

    Raises `RestoreRefused`, `ColdError`.
    """
    known = dict(given_up)
    bases: list[tuple[int, StoredManifest | None]] = (
        [(0, None)] if catalog.begins_at_nothing else []
    )
    bases += [(manifest.log_index, manifest) for manifest in catalog.manifests]
    if not bases:
        raise RestoreRefused(f"cluster {source.cluster_id} has no restore point")
    for index, manifest in reversed(bases):
        reach = catalog.reach(index)
        if choice.index is not None and not index <= choice.index <= reach:
            continue
        if manifest is not None and not await _serves(source, manifest, choice, known):
            continue
        if choice.index is not None:
            return Base(index, manifest, choice.index, known)
        if choice.at_ms is not None:
            await _refuse_gap(source, catalog, index, reach, choice.at_ms)
        elif reach < bases[-1][0]:
            raise RestoreRefused(
                f"the state as of entry {bases[-1][0]} and later cannot be restored: "
                f"{_told(known)}. What is older leads only to entry {reach}, as the archive has a "
                f"gap there: ask for that with --index {reach}"
            )
        return Base(index, manifest, reach, known)
    refusal = f"cluster {source.cluster_id} cannot be restored to then"
    if known:
        raise RestoreRefused(f"{refusal}, because of damage: {_told(known)}")
    ranges = ", ".join(f"{first} to {last}" for first, last in catalog.ranges())
    raise RestoreRefused(f"{refusal}; it can be to entries {ranges}")


def give_up(known: Mapping[str, str], name: str, error: Exception) -> dict[str, str]:
    """Add to what is `known` that a snapshot is damaged, and tell the operator."""
    log.error(
        "A SNAPSHOT IN THE COLD STORE IS DAMAGED; an older state and the log are taken instead, "
        "if there are any",
        snapshot=name,
        error=str(error),
    )
    return {**known, name: str(error)}


async def _serves(
    source: ArchivedObjects, stored: StoredManifest, choice: Choice, known: dict[str, str]
) -> bool:
    """Whether a snapshot is not known to be damaged, nor too new; adds to what is known."""
    if stored.name in known:
        return False
    if choice.at_ms is None:
        return True
    try:
        return (await source.manifest(stored)).of.time_ms <= choice.at_ms
    except (ObjectCorrupt, ObjectMissing) as error:
        known |= give_up(known, stored.name, error)
        return False


async def _refuse_gap(
    source: ArchivedObjects, catalog: Catalog, base: int, reach: int, at_ms: int
) -> None:
    """Raises `RestoreRefused` when entries of before `at_ms` may be missing behind `reach`."""
    later = [one for one in catalog.manifests if one.log_index > reach]
    path = catalog.path(base)
    if not later or (path and (await source.head(path[-1])).last.time_ms > at_ms):
        return
    raise RestoreRefused(
        f"the archive has a gap at that time: entries {reach + 1} to {later[0].log_index} are "
        f"missing. Restore to entry {reach}, or to {later[0].log_index} and later"
    )


def _told(known: Mapping[str, str]) -> str:
    return "; ".join(f"{name} ({why})" for name, why in known.items())
