"""The names of anomalies, and how they are reported."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from tests.jepsen_like.history import Operation


class Anomaly(Enum):
    """The names of findings. docs/jepsen.md says how to read each."""

    LOST_WRITE = "lost write"
    DUPLICATE = "duplicate"
    INCONSISTENT_OFFSETS = "inconsistent offsets"
    ABORTED_READ = "aborted read"
    PHANTOM_WRITE = "phantom write"
    REORDERED_WRITE = "reordered write"
    DIVERGED_REPLICA = "diverged replica"
    NONMONOTONIC_POLL = "nonmonotonic poll"
    POLL_SKIP = "poll skip"
    STALE_READ = "stale read"
    VANISHED_READ = "vanished read"
    CORRUPT_READ = "corrupt read"
    TORN_READ = "torn read"
    WRITE_AFTER_CLOSE = "write after close"
    LOST_CLOSE = "lost close"
    PHANTOM_CLOSE = "phantom close"
    INCONSISTENT_CLOSE = "inconsistent close"
    STALE_EPOCH_ACCEPTED = "stale epoch accepted"
    PHANTOM_FENCING = "phantom fencing"
    SEQUENCE_GAP = "sequence gap"
    SEQUENCE_REUSED = "sequence reused"
    USE_AFTER_DELETE = "use after delete"
    LOST_STREAM = "lost stream"
    RESURRECTED_DATA = "resurrected data"
    EARLY_UNKNOWN = "early unknown"


class MalformedHistory(Exception):
    """The history breaks a rule of the recorder, so that nothing follows from it."""


def shown(text: str, most: int = 40) -> str:
    """Content as shown in a message."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}… ({len(text)} bytes)"


def describe(operation: Operation) -> str:
    """One line that identifies an operation in its history."""
    parts = [f"{operation.client} {operation.kind}"]
    if operation.node:
        parts.append(f"@{operation.node}")
    if operation.stamp is not None:
        stamp = operation.stamp
        parts.append(f"as {stamp.producer} epoch {stamp.epoch} seq {stamp.seq}")
    if operation.offset:
        parts.append(f"from {operation.offset}")
    if operation.payload:
        parts.append(shown(operation.payload))
    parts.append(f"[{operation.invoked_ns}..{operation.returned_ns}] {operation.outcome}")
    if operation.refusal:
        parts.append(f"({operation.refusal})")
    if operation.data:
        parts.append(f"got {shown(operation.data)}")
    if operation.next_offset:
        parts.append(f"next {operation.next_offset}")
    flags = ("duplicate", "up_to_date", "closed")
    return " ".join(parts + [flag for flag in flags if getattr(operation, flag)])


@dataclass(frozen=True)
class Finding:
    """One violation: its name, where, why, and the operations that prove it, the culprit first."""

    anomaly: Anomaly
    stream: str
    incarnation: int
    message: str
    operations: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        head = f"{self.anomaly.value}: {self.stream} #{self.incarnation}: {self.message}"
        return "\n".join([head, *(f"    {describe(operation)}" for operation in self.operations)])


@dataclass
class Report:
    """All findings, and counts by which a caller tells a hollow run from a clean one.

    Counts: "<kind> <outcome>" for each operation; "incarnations"; "without final read"
    (incarnations in which lost writes cannot be seen); "ambiguous" (operations left out because
    their stream was deleted and created again meanwhile); "unknown that took effect".
    """

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def is_valid(self) -> bool:
        return not self.findings

    def by_name(self) -> dict[Anomaly, list[Finding]]:
        """The findings in groups, each group in the order of detection."""
        groups: dict[Anomaly, list[Finding]] = {}
        for finding in self.findings:
            groups.setdefault(finding.anomaly, []).append(finding)
        return groups
