"""Facts of a cluster in which all is well, to be changed by tests."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from streamd.commands.doctor.findings import ClockOffset, Examined
from streamd.hosts.inspection.facts import (
    CertificateFacts,
    DiskFacts,
    LimitFacts,
    MachineFacts,
    NodeFacts,
    PeerFacts,
    PortFacts,
    PrivateFileFacts,
    SettingFacts,
    StoreFacts,
    SyncFacts,
)

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
MIB = 1024 * 1024

SETTINGS = SettingFacts(1000, True, 0, 1000, 3_600_000, 7 * DAY_MS)
DISK = DiskFacts("/data", "ext4", 50 * 1024 * MIB, 100 * 1024 * MIB, 256 * MIB)
LIMITS = LimitFacts(30, 20_000, 65_530, 0, 0)
CERTIFICATE = CertificateFacts(
    "server.tls_cert",
    "/tls/cert.pem",
    ["one.example.net", "10.0.0.1"],
    ["one.example.net"],
    NOW_MS - DAY_MS,
    NOW_MS + 90 * DAY_MS,
)
PRIVATE = PrivateFileFacts("server.tls_key", "/tls/key.pem")
SYNC = SyncFacts("the last hour", 5000, 0.005)


def peer(node_id: int) -> PeerFacts:
    """A member with which all is well."""
    return PeerFacts(node_id, f"10.0.0.{node_id}:4438", f"10.0.0.{node_id}:4437", True, True)


def node(node_id: int) -> NodeFacts:
    """One of three nodes."""
    return NodeFacts(
        node_id,
        "0.2.0",
        MachineFacts(SETTINGS, DISK, LIMITS, [CERTIFICATE], [PRIVATE]),
        NOW_MS,
        NOW_MS,
        [SYNC],
        [PortFacts("server.listen", f"10.0.0.{node_id}:4437")],
        [peer(other) for other in (1, 2, 3) if other != node_id],
        StoreFacts("s3://bucket"),
    )


def member(node_id: int, **changes: Any) -> dict[str, Any]:
    """A member in the leader's status."""
    return {"node_id": node_id, "voter": True, "behind_entries": 0, **changes}


STATUS: dict[str, Any] = {
    "node_id": 1,
    "leader_id": 1,
    "voters": [1, 2, 3],
    "learners": [],
    "advice": None,
    "members": [member(1), member(2), member(3)],
}
ARCHIVE: dict[str, Any] = {
    "lag_entries": 0,
    "lag_ms": 0,
    "gaps": [],
    "damaged_snapshots": [],
    "log_cut_unarchived_index": None,
    "set_back": None,
    "fenced_by": None,
    "archived_index": 900,
    "archived_time_ms": NOW_MS,
    "last_snapshot": {"index": 800, "time_ms": NOW_MS - 60_000},
}
SCRUB: dict[str, Any] = {
    "missing_objects": 0,
    "damaged_objects": 0,
    "last_pass_time_ms": NOW_MS - DAY_MS,
}
COLD: dict[str, Any] = {
    "hot_bytes": MIB,
    "hot_limit_bytes": 1024 * MIB,
    "backpressure": None,
    "tasks": {"flush": {"error": None}},
    "archive": ARCHIVE,
    "scrub": SCRUB,
}
WELL = Examined(
    {node_id: node(node_id) for node_id in (1, 2, 3)},
    NOW_MS,
    clocks={2: ClockOffset(1.0, 2.0), 3: ClockOffset(-3.0, 2.0)},
    status=STATUS,
    cold=COLD,
)


def with_node(**changes: Any) -> Examined:
    """The cluster, but for one node."""
    return WELL._replace(nodes={**WELL.nodes, 2: replace(node(2), **changes)})


def with_machine(**changes: Any) -> Examined:
    """The cluster, but for one node's machine."""
    return with_node(machine=replace(node(2).machine, **changes))


def with_status(**changes: Any) -> Examined:
    """The cluster with another status."""
    return WELL._replace(status={**STATUS, **changes})


def with_cold(**changes: Any) -> Examined:
    """The cluster with another report of the cold store."""
    return WELL._replace(cold={**COLD, **changes})


def with_archive(**changes: Any) -> Examined:
    """The cluster with another archive."""
    return with_cold(archive={**ARCHIVE, **changes})


def without_node(*gone: int) -> Examined:
    """The cluster without these nodes."""
    nodes = {node_id: facts for node_id, facts in WELL.nodes.items() if node_id not in gone}
    return WELL._replace(nodes=nodes, silent=dict.fromkeys(gone, "no answer within 10 s"))
