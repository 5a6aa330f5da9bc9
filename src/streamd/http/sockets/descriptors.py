"""How many connections the process's file descriptors allow.

A client too many is turned away, but a store that cannot open its next file ends the node. So
clients must never take the descriptors that the stores need.
"""

from __future__ import annotations

import resource

import structlog

# LevelDB keeps open up to this share of the files that the process may open, whatever that is.
_TABLES_SHARE = 5
# Logs and manifests of two stores, files of compactions, threads, listeners, the cold store.
_OWN = 64
# Peers' connections, those in their handshake and those dialled: 64 of each at most.
_PEERS = 192

log = structlog.get_logger("streamd.http")


def needed_descriptors(connections: int, *, clustered: bool, others: int = 0) -> int:
    """How many descriptors a process needs for so many connections of clients, and `others` of
    other listeners."""
    return (connections + _own(clustered, others)) * _TABLES_SHARE // (_TABLES_SHARE - 1) + 1


def allowed_connections(wanted: int, *, clustered: bool, others: int = 0) -> int:
    """At most `wanted`; less, and at least 1, where the system grants fewer descriptors. `others`
    are connections of other listeners.

    First raises the process's own limit as far as allowed.
    """
    own = _own(clustered, others)
    granted = _raise_limit(needed_descriptors(wanted, clustered=clustered, others=others))
    allowed = max(1, min(wanted, granted - granted // _TABLES_SHARE - own))
    if allowed < wanted:
        log.warning(
            "too few file descriptors for server.max_connections",
            descriptors=granted,
            max_connections=wanted,
            allowed=allowed,
        )
    return allowed


def _own(clustered: bool, others: int) -> int:
    return _OWN + (_PEERS if clustered else 0) + others


def _raise_limit(needed: int) -> int:
    """Raise the limit to `needed` descriptors, or as far as allowed; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    granted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if granted > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
        except (OSError, ValueError, OverflowError):
            return soft  # The hard limit may be "unlimited", but the kernel has its own.
    return max(soft, granted)
