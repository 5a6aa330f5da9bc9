"""Checks of each node's machine: disk, descriptors, memory."""

from __future__ import annotations

from collections.abc import Iterator

from streamd.commands.doctor.findings import Examined, Finding, fail, ok, size, span, warn
from streamd.http.sockets.descriptors import needed_descriptors

_IN_MEMORY = {"tmpfs", "ramfs"}
_LAYERED = {"overlay", "aufs"}
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs"}
_FUSE = "fuse"
# A disk below twice the limit at which writes are refused is nearly full.
_ROOM = 2
_SLOW_S = 0.1
# LevelDB maps up to a thousand tables into memory; threads and libraries need some, too.
_MAPS = 8192
_STRICT_OVERCOMMIT = 2


def room(examined: Examined) -> Iterator[Finding]:
    """Whether the disk has room."""
    for node, facts in examined.nodes.items():
        disk = facts.machine.disk
        if disk.error is not None:
            yield fail(f"{disk.path}: {disk.error}", node)
            continue
        text = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} are free at {disk.path}"
        cure = f"du -xsh {disk.path}/*; delete streams, or enlarge the disk"
        if disk.free_bytes < disk.low_bytes:
            yield fail(f"{text}: a leader refuses writes", node, cure)
        elif disk.free_bytes < _ROOM * disk.low_bytes:
            yield warn(f"{text}: writes are refused below {size(disk.low_bytes)}", node, cure)
        else:
            yield ok(text, node)


def file_system(examined: Examined) -> Iterator[Finding]:
    """Whether the file system keeps what was synced."""
    for node, facts in examined.nodes.items():
        disk = facts.machine.disk
        kind, move = disk.kind, "set server.data_dir to a local disk with ext4 or xfs"
        if disk.error is not None:
            continue
        if kind in _IN_MEMORY:
            yield fail(f"{kind}: a restart of the machine loses the data", node, move)
        elif kind in _LAYERED:
            text = f"{kind}: the data end with the container"
            yield warn(text, node, "mount a volume at server.data_dir")
        elif kind in _REMOTE or kind.startswith(_FUSE):
            text = f"{kind}: locks and syncs depend on another machine or program"
            yield warn(text, node, move)
        elif not kind:
            yield warn("the kernel does not say of which kind it is", node)
        else:
            yield ok(kind, node)


def syncs(examined: Examined) -> Iterator[Finding]:
    """Whether synced writes are fast enough: each append waits for one, and so do votes."""
    for node, facts in examined.nodes.items():
        limit_s = facts.machine.settings.election_timeout_ms / 1000
        for sync in facts.syncs:
            if not sync.count:
                yield ok(f"{sync.of}: nothing was written", node)
                continue
            most = "more than 5 s" if sync.p99_s is None else f"at most {span(sync.p99_s)}"
            text = f"{sync.of}: 99 % of {sync.count} took {most}"
            cure = "iostat -x 5; give the data a disk of their own"
            if sync.p99_s is None or sync.p99_s >= limit_s:
                yield fail(f"{text}, as long as an election timeout", node, cure)
            elif sync.p99_s > _SLOW_S:
                yield warn(text, node, cure)
            else:
                yield ok(text, node)


def descriptors(examined: Examined) -> Iterator[Finding]:
    """Whether the process may open what its connections and stores need."""
    for node, facts in examined.nodes.items():
        limits, settings = facts.machine.limits, facts.machine.settings
        needed = needed_descriptors(
            settings.max_connections,
            clustered=settings.is_clustered,
            others=settings.other_connections,
        )
        hard = limits.max_open_files
        text = f"{limits.open_files} open, up to {'any number' if hard is None else hard} allowed"
        if hard is not None and hard < needed:
            wanted = f"server.max_connections ({settings.max_connections}) needs {needed}"
            yield warn(f"{text}; {wanted}", node, f"LimitNOFILE={needed}, or ulimit -n {needed}")
        else:
            yield ok(text, node)


def maps(examined: Examined) -> Iterator[Finding]:
    """Whether the process may map enough files into memory."""
    for node, facts in examined.nodes.items():
        found = facts.machine.limits.max_maps
        if found is not None and found < _MAPS:
            yield warn(f"vm.max_map_count is {found}", node, "sysctl -w vm.max_map_count=65530")
        elif found is not None:
            yield ok(f"vm.max_map_count is {found}", node)


def memory(examined: Examined) -> Iterator[Finding]:
    """Whether the process's memory is its own: swapped out, it misses heartbeats."""
    for node, facts in examined.nodes.items():
        limits = facts.machine.limits
        if limits.swapped_bytes:
            text = f"{size(limits.swapped_bytes)} of the process are in swap"
            cure = "sysctl -w vm.swappiness=1; give the machine more memory"
            yield warn(text, node, cure)
        elif limits.overcommit == _STRICT_OVERCOMMIT:
            text = "vm.overcommit_memory is 2: allocations fail while there is memory"
            yield warn(text, node, "sysctl -w vm.overcommit_memory=0")
        else:
            yield ok("none of the process is in swap", node)
