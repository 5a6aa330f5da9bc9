"""What was found out about a node and its machine: values only, which nodes send to each other.

Sizes are in bytes, names of times end in their unit, and times of day are in milliseconds since the
epoch. New fields need defaults: nodes of two releases exchange these.
"""

from __future__ import annotations

import msgspec


class DiskFacts(msgspec.Struct, frozen=True):
    """The file system of a directory: its `kind` as the kernel names it, and its room. `low_bytes`
    is `storage.min_free_bytes` in effect. `error` says why it cannot be looked at."""

    path: str
    kind: str = ""
    free_bytes: int = 0
    total_bytes: int = 0
    low_bytes: int = 0
    error: str | None = None


class SyncFacts(msgspec.Struct, frozen=True):
    """How long synced writes took: their number, and the time within which 99 of 100 ended. None is
    beyond the node's histogram: more than 5 s. `of` says which writes."""

    of: str
    count: int
    p99_s: float | None


class LimitFacts(msgspec.Struct, frozen=True):
    """Limits of the process and settings of the kernel; None where there is no limit, or where the
    kernel does not say. A node raises its limit of open files to the hard one, which counts here.
    `swapped_bytes` of the process's memory are in swap."""

    open_files: int
    max_open_files: int | None
    max_maps: int | None = None
    overcommit: int | None = None
    swapped_bytes: int = 0


class CertificateFacts(msgspec.Struct, frozen=True):
    """A certificate, by the configuration's key for its file: what it is for, and until when.

    `wanted` are the names that clients or peers look for in it, in their order. Of a file with
    several authorities the one that ends first counts.
    """

    key: str
    path: str
    names: list[str] = []
    wanted: list[str] = []
    begins_ms: int = 0
    ends_ms: int = 0
    error: str | None = None


class PrivateFileFacts(msgspec.Struct, frozen=True):
    """A file or directory that only the node's user should read."""

    key: str
    path: str
    is_open: bool = False
    error: str | None = None


class PortFacts(msgspec.Struct, frozen=True):
    """An attempt to use an address: `error` says why it failed, None that it succeeded."""

    key: str
    address: str
    error: str | None = None


class PeerFacts(msgspec.Struct, frozen=True):
    """A member as another one sees it. `dials` and `is_dialled` are the two connections between
    them; `last_error` is why the last attempt to dial failed. `clients_error` is why a connection
    to its address for clients failed, None if it did not."""

    node_id: int
    peer_address: str
    client_address: str
    dials: bool
    is_dialled: bool
    last_error: str = ""
    clients_error: str | None = None


class StoreFacts(msgspec.Struct, frozen=True):
    """A test of the cold store: an object written, read, listed and deleted."""

    place: str
    error: str | None = None


class EndingToken(msgspec.Struct, frozen=True):
    """A token that ends soon, or has ended."""

    token_id: str
    ends_ms: int


class SettingFacts(msgspec.Struct, frozen=True):
    """What the checks need of a node's configuration."""

    max_connections: int
    is_clustered: bool
    other_connections: int
    election_timeout_ms: int
    snapshot_interval_ms: int
    scrub_interval_ms: int


class MachineFacts(msgspec.Struct, frozen=True):
    """What `survey` finds: all that needs no running node."""

    settings: SettingFacts
    disk: DiskFacts
    limits: LimitFacts
    certificates: list[CertificateFacts] = []
    private_files: list[PrivateFileFacts] = []


class NodeFacts(msgspec.Struct, frozen=True):
    """What a node knows about itself. `received_ms` and `answered_ms` are the times, by its clock,
    of the question and of the answer; both are 0 before a start."""

    node_id: int
    version: str
    machine: MachineFacts
    received_ms: int = 0
    answered_ms: int = 0
    syncs: list[SyncFacts] = []
    ports: list[PortFacts] = []
    peers: list[PeerFacts] = []
    store: StoreFacts | None = None
    ending_tokens: list[EndingToken] = []
