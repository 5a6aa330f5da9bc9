"""The status of a node in its group, as a report and as metrics."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from streamd import __version__
from streamd.cluster.cluster import Cluster
from streamd.node.node import Node
from streamd.node.operations import Operations
from streamd.process.metrics import Metrics
from streamd.raft.interface import PeerStatus
from streamd.streams.limits import DEFAULT
from streamd.streams.model import Bucket
from streamd.transport import PeerConnection

# How many buckets have series of their own in the metrics.
_MAX_BUCKETS = _MAX_IDENTITIES = 100


def report(node: Node) -> dict[str, Any]:
    """The content of ``/cluster/status``. Raises `StorageFailed`."""
    group = node.group
    configuration = group.view.configuration
    identity = node.stores.data_dir.identity
    found: dict[str, Any] = {
        "cluster_id": identity.cluster_id,
        "cluster_name": identity.cluster_name or None,
        "node_id": group.view.node_id,
        "version": __version__,
        "role": group.view.role.name.lower(),
        "leader_id": group.view.leader_id or None,
        "term": group.view.term,
        "commit_index": group.view.commit_index,
        "last_applied": group.view.applied_index,
        "last_log_index": group.view.last_index,
        "first_log_index": group.view.first_index,
        "voters": sorted(configuration.voters),
        "learners": sorted(configuration.learners),
        "streams": group.state.header.streams,
        "subscriptions": node.subscription_counts.report(),
    }
    if node.disk.is_on:
        found["disk"] = node.disk.report()
    if node.cluster is not None:
        outsider = node.cluster.outsider()
        found["membership"] = "member" if outsider is None else outsider.word
        found["advice"] = None if outsider is None else outsider.advice
        found["members"] = _members(node, node.cluster)
        found["incarnation"] = f"{node.cluster.incarnation_of(group.view.node_id):016x}"
    found["features"] = node.log_formats.level
    if node.operations is not None:
        found["operation"] = _operation(node.operations)
    return found


def _operation(operations: Operations) -> dict[str, object] | None:
    """The latest operation on the cluster, in short."""
    if not (recorded := operations.recorded()):
        return None
    latest = recorded[-1]
    return {
        "id": latest.operation_id,
        "kind": latest.kind,
        "state": latest.state,
        "why": latest.why,
    }


def _members(node: Node, cluster: Cluster) -> list[dict[str, object]]:
    """What this node knows about each member; only the leader knows lag and contact."""
    group = node.group
    configuration = group.view.configuration
    progress = group.view.peers()
    connections = cluster.connections()
    members: list[dict[str, object]] = []
    for node_id, peer_address, client_address in configuration.addresses:
        member: dict[str, object] = {
            "node_id": node_id,
            "peer_address": peer_address,
            "client_address": client_address,
            "voter": configuration.is_voter(node_id),
        }
        if node_id in progress:
            peer = progress[node_id]
            member["match_index"] = peer.match_index
            member["behind_entries"] = group.view.last_index - peer.match_index
            member["behind_bytes"] = _lag_bytes(node, peer)
            member["flow"] = peer.state
            member["last_contact_ms"] = _last_contact_ms(node, peer)
        member["version"] = _version(node, node_id, connections)
        if lacked := node.log_formats.lacked_by(node_id):
            member["lacks"] = lacked
        if node_id in connections:
            member["connected"] = connections[node_id].connected
        members.append(member)
    return members


def too_old_members(node: Node) -> int:
    """How many members run a release that does not understand the log, so far as is known."""
    members = node.group.view.configuration.members() - {node.group.view.node_id}
    return sum(bool(node.log_formats.lacked_by(one)) for one in members)


def _version(node: Node, node_id: int, connections: Mapping[int, PeerConnection]) -> str:
    """The release that a member runs, or ran when it was last connected. 0.1.0 does not tell."""
    if node_id == node.group.view.node_id:
        return __version__
    connection = connections.get(node_id)
    return (connection.release if connection is not None else "") or "unknown"


def _lag_bytes(node: Node, peer: PeerStatus) -> int:
    """About how many bytes of entries a follower lacks. If the log no longer has some of them and a
    Raft snapshot will replace them, only the rest counts."""
    return node.stores.log.size_after(max(peer.match_index, node.group.view.first_index - 1))


def _last_contact_ms(node: Node, peer: PeerStatus) -> int:
    return round(peer.ticks_since_heard * node.group.tick_s * 1000)


def export(node: Node, metrics: Metrics) -> None:
    """Register the metrics of the node and of its peers."""
    metrics.info(
        "build",
        "The releases of streamd and Python that this node runs; always 1.",
        {
            "version": __version__,
            "python": platform.python_version(),
        },
    )
    group, gauge = node.group, metrics.gauge
    gauge("raft_term", "Current Raft term of this node.", lambda: group.view.term)
    gauge(
        "raft_role",
        "Raft role of this node: 0 follower, 1 or 2 candidate, 3 leader.",
        lambda: group.view.role,
    )
    gauge(
        "raft_commit_index",
        "Index of the last committed log entry.",
        lambda: group.view.commit_index,
    )
    gauge(
        "raft_applied_index",
        "Index of the last applied log entry.",
        lambda: group.view.applied_index,
    )
    gauge(
        "ready",
        "1 if /readyz/cluster answers 200 on this node, else 0.",
        node.is_cluster_ready,
    )
    gauge("streams", "Streams in this node's state.", lambda: node.group.state.header.streams)
    metrics.counter_by(
        "what",
        "peer_refused",
        "Peer messages refused because no correct peer sends them.",
        lambda: _refused(node),
    )
    _export_limits(node, metrics)
    if node.disk.is_on:
        node.disk.export(metrics)
    if node.cluster is not None:
        gauge(
            "members_too_old",
            "Members whose release does not understand the log.",
            lambda: too_old_members(node),
        )
        _export_progress(node, metrics)
        _export_connections(node.cluster, metrics)


def _export_limits(node: Node, metrics: Metrics) -> None:
    def of_each(value: Callable[[Bucket], float]) -> Callable[[], Mapping[str, float]]:
        return lambda: {name: value(bucket) for name, bucket in _limited(node)}

    metrics.gauge_by(
        "bucket",
        "bucket_bytes",
        f"Bytes stored in each of the first {_MAX_BUCKETS} buckets with limits of their own.",
        of_each(lambda bucket: bucket.size),
    )
    metrics.gauge_by(
        "bucket",
        "bucket_streams",
        "Streams in each bucket with limits of its own, including deleted ones "
        "that forks still read.",
        of_each(lambda bucket: bucket.streams),
    )
    metrics.gauge_by(
        "identity",
        "identity_subscriptions",
        f"Subscriptions made by each of the first {_MAX_IDENTITIES} identities with limits of "
        "their own.",
        lambda: _owned(node),
    )
    metrics.counter_by(
        "result",
        "quota_refusals",
        "Commands refused by a quota, by result, as applied by this node.",
        lambda: node.group.state.limits.refusals,
    )


def _limited(node: Node) -> Iterator[tuple[str, Bucket]]:
    state = node.group.state
    for name in sorted(state.limits.rows("bucket"))[:_MAX_BUCKETS]:
        bucket = state.buckets.get(name.encode())
        if bucket is not None:
            yield name, bucket


def _owned(node: Node) -> dict[str, float]:
    state = node.group.state
    names = sorted(state.limits.rows("identity"))[:_MAX_IDENTITIES]
    return {name: state.subscriptions.owned_by(name) for name in names if name != DEFAULT}


def _refused(node: Node) -> dict[str, float]:
    counts: dict[str, float] = {
        "commands": node.group.admission.refused_commands,
        "messages": node.group.view.refused_messages,
    }
    if node.cluster is not None:
        counts["requests"] = node.cluster.refused_requests
        counts["connections"] = node.cluster.transport.refused_connections
    return counts


def _export_progress(node: Node, metrics: Metrics) -> None:
    group = node.group

    def of_each(value: Callable[[PeerStatus], float]) -> Callable[[], Mapping[str, float]]:
        return lambda: {str(node_id): value(peer) for node_id, peer in group.view.peers().items()}

    metrics.gauge_by(
        "peer",
        "peer_behind_entries",
        "Log entries that each peer lacks (leader only).",
        of_each(lambda peer: group.view.last_index - peer.match_index),
    )
    metrics.gauge_by(
        "peer",
        "peer_behind_bytes",
        "Approximate bytes of log entries that each peer lacks (leader only).",
        of_each(lambda peer: _lag_bytes(node, peer)),
    )
    metrics.gauge_by(
        "peer",
        "peer_last_contact_seconds",
        "Seconds since the leader last received a message from each peer (leader only).",
        of_each(lambda peer: _last_contact_ms(node, peer) / 1000),
    )


def _export_connections(cluster: Cluster, metrics: Metrics) -> None:
    def of_each(value: Callable[[PeerConnection], float]) -> Callable[[], Mapping[str, float]]:
        return lambda: {str(peer): value(link) for peer, link in cluster.connections().items()}

    metrics.gauge_by(
        "peer",
        "peer_connected",
        "1 if this node is connected to the peer, else 0.",
        of_each(lambda link: link.connected),
    )
    metrics.counter_by(
        "peer", "peer_sent_bytes", "Bytes sent to each peer.", of_each(lambda link: link.sent_bytes)
    )
    metrics.counter_by(
        "peer",
        "peer_received_bytes",
        "Bytes received from each peer.",
        of_each(lambda link: link.received_bytes),
    )
    metrics.counter_by(
        "peer",
        "peer_dropped_messages",
        "Raft messages to each peer dropped because its queue was full.",
        of_each(lambda link: link.dropped_messages),
    )
