"""The states in the store, as their manifests describe them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from streamd_audit.context import Context
from streamd_audit.findings import Finding, damage_kind, finding
from streamd_audit.names import PIECES, SNAPSHOTS, ManifestName, parse, split
from streamd_audit.sources.manifests import ManifestsSource

_COLUMNS = (
    "object string, `group` int, index bigint, snapshot_id string, term bigint, chain bigint, "
    "log_ms bigint, configuration binary, problem string"
)


@dataclass(frozen=True, order=True)
class State:
    """A state as of entry `index`, whose manifest is whole; `object` is the manifest's name."""

    group: int
    index: int
    snapshot_id: str
    term: int
    chain: int
    log_ms: int
    object: str

    def pieces(self, cluster: str) -> str:
        """The prefix of the names of its pieces."""
        return f"{cluster}/{PIECES}{self.group:08x}/{self.index:016x}-{self.snapshot_id}-"


def states_of(context: Context) -> Sequence[State]:
    """All states, the newest last; there are as many as retention keeps."""
    rows = manifests_of(context)
    return sorted(
        State(*(row[field.name] for field in fields(State)))
        for row in rows
        if row["problem"] is None
    )


def manifests_of(context: Context) -> list[dict[str, Any]]:
    """A row of `_COLUMNS` for each manifest, readable or not."""
    return context.shared("manifests", lambda: context.rows(ManifestsSource, _COLUMNS))


def manifest_findings(context: Context) -> list[Finding]:
    """What is wrong with manifests by themselves."""
    found = []
    for row in manifests_of(context):
        if row["problem"] is not None:
            damage, _, detail = row["problem"].partition(": ")
            found.append(
                finding(
                    damage_kind("manifest", damage),
                    cluster=context.cluster,
                    group=row["group"],
                    index=row["index"],
                    object=row["object"],
                    found=detail,
                )
            )
    return found


def listed_states(context: Context) -> set[str]:
    """The names of the manifests that exist now."""
    found: set[str] = set()
    for page in context.store.list(f"{context.cluster}/{SNAPSHOTS}"):
        for listed in page:
            if isinstance(parse(split(listed.name)[1]), ManifestName):
                found.add(listed.name)
    return found
