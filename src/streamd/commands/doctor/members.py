"""Checks of a cluster's members: whether they answer, agree, reach each other, and are enough."""

from __future__ import annotations

from collections.abc import Iterator

from streamd.commands.doctor.findings import Examined, Finding, fail, ok, span, warn

# A leader's clock stamps log entries, and each node's judges JWTs and certificates.
_OFFSET_MS = 500
_WRONG_MS = 60_000
# What `cluster promote` allows.
_LAG_ENTRIES = 1000


def configuration(examined: Examined) -> Iterator[Finding]:
    """Whether a node can start with its configuration, as `config check` sees it."""
    for fault in examined.faults:
        yield fail(fault, cure="streamd config check")
    for warning in examined.warnings:
        yield warn(warning)
    if examined.status is None and not examined.faults:
        yield ok("a node can start with it")


def answers(examined: Examined) -> Iterator[Finding]:
    """Whether each member answers."""
    for node, why in examined.silent.items():
        cure = f"streamd node status {node} --config FILE, or systemctl status streamd; its log"
        yield fail(f"it gives no report: {why}", node, cure)
    for node in examined.too_old:
        yield warn("it answers, and its release has no report for the doctor", node, "upgrade it")
    if examined.status is not None:
        for node in examined.nodes:
            yield ok("it answers", node)


def membership(examined: Examined) -> Iterator[Finding]:
    """Whether the node that was asked is a member, and members understand the log."""
    status = examined.status or {}
    if status.get("advice"):
        yield fail(status["advice"], status["node_id"])
    for member in status.get("members", []):
        if member.get("lacks"):
            text = f"its release cannot read the log, it lacks {member['lacks']}"
            yield fail(text, member["node_id"], "run the other members' release on it")


def releases(examined: Examined) -> Iterator[Finding]:
    """Whether all run the same release."""
    versions = {node: facts.version for node, facts in examined.nodes.items()}
    different = sorted(set(versions.values()))
    if len(different) > 1:
        each = ", ".join(f"node {node} {version}" for node, version in sorted(versions.items()))
        yield warn(f"members run different releases: {each}", cure="end the upgrade, node by node")
    elif different:
        yield ok(different[0])


def clocks(examined: Examined) -> Iterator[Finding]:
    """Whether the clocks of the members agree, so far as requests can tell."""
    for node, (offset_ms, error_ms) in examined.clocks.items():
        text = f"{offset_ms:+.1f} ms ± {error_ms:.1f} ms from the node that was asked"
        least_ms, cure = abs(offset_ms) - error_ms, "chronyc tracking; timedatectl set-ntp true"
        if least_ms > _WRONG_MS:
            yield fail(text, node, cure)
        elif least_ms > _OFFSET_MS:
            yield warn(text, node, cure)
        elif error_ms > _OFFSET_MS:
            yield warn(f"{text}: answers take too long to compare clocks", node)
        else:
            yield ok(text, node)


def quorum(examined: Examined) -> Iterator[Finding]:
    """Whether there is a leader, and a majority of voters answers."""
    if examined.status is None:
        return
    voters, alive = examined.status["voters"], _alive(examined)
    leader, enough = examined.status["leader_id"], len(voters) // 2 + 1
    text = f"{len(alive)} of {len(voters)} voters answer, and {enough} are enough"
    if leader is None:
        yield fail(f"no leader: nothing is written; {text}", cure="start the nodes that are down")
    elif len(alive) < enough:
        yield fail(f"{text} no longer", cure="start the nodes that are down")
    elif len(alive) < len(voters):
        yield warn(f"node {leader} leads; {text}", cure="start the nodes that are down")
    else:
        yield ok(f"node {leader} leads; {text}")


def losses(examined: Examined) -> Iterator[Finding]:
    """What the loss of each voter would mean."""
    if examined.status is None:
        return
    voters, alive = examined.status["voters"], _alive(examined)
    enough = len(voters) // 2 + 1
    for node in sorted(alive):
        left = len(alive) - 1
        text = f"its loss leaves {left} of {len(voters)} voters"
        if len(voters) == 1:
            yield ok("it is the only voter: while it is down nothing is served", node)
        elif left < enough:
            cure = "start the nodes that are down" if len(alive) < len(voters) else None
            cure = cure or "streamd cluster add ADDRESS, then promote: three voters survive one"
            yield warn(f"{text}: nothing could be written", node, cure)
        elif left == enough:
            yield ok(f"{text}: writes continue; losing another stops them", node)
        else:
            yield ok(f"{text}: writes continue, also without another", node)


def _alive(examined: Examined) -> set[int]:
    voters = [] if examined.status is None else examined.status["voters"]
    return set(voters) & {*examined.nodes, *examined.too_old}


def replication(examined: Examined) -> Iterator[Finding]:
    """Whether members follow the leader closely."""
    for member in (examined.status or {}).get("members", []):
        lag = member.get("behind_entries")
        if lag is None:
            continue
        text = f"it lags {lag} entries"
        if lag > _LAG_ENTRIES:
            yield warn(text, member["node_id"], "streamd cluster status")
        else:
            yield ok(text, member["node_id"])


def connections(examined: Examined) -> Iterator[Finding]:
    """Whether members are connected in both directions, at the addresses that they advertise."""
    for node, facts in examined.nodes.items():
        for peer in facts.peers:
            other = f"node {peer.node_id} at {peer.peer_address}"
            if peer.dials and peer.is_dialled:
                yield ok(f"connected with {other}, out and in", node)
                continue
            out = "connects to" if peer.dials else "cannot connect to"
            back = "is connected from there" if peer.is_dialled else "gets no connection from there"
            host, _, port = peer.peer_address.rpartition(":")
            cure = f"nc -vz {host.strip('[]')} {port} (firewall, cluster.advertise)"
            why = "" if peer.dials or not peer.last_error else f" ({peer.last_error})"
            yield fail(f"{out} {other}{why}, {back}", node, cure)


def client_addresses(examined: Examined) -> Iterator[Finding]:
    """Whether members reach each other at the addresses for clients."""
    for node, facts in examined.nodes.items():
        for peer in facts.peers:
            text = f"node {peer.node_id} at {peer.client_address}"
            if peer.clients_error is None:
                yield ok(f"reaches {text}", node)
            else:
                cure = "set server.advertise there to the address by which others reach it"
                yield warn(f"does not reach {text}: {peer.clients_error}", node, cure)


def ports(examined: Examined) -> Iterator[Finding]:
    """Before a start: whether the node's addresses are free, and its routes lead somewhere."""
    for node, facts in examined.nodes.items():
        for port in facts.ports:
            text = f"{port.key} {port.address}"
            if port.error is None:
                yield ok(text, node)
            elif port.key == "cluster.routes":
                yield warn(f"{text}: {port.error}", node, "start that node, or correct the address")
            else:
                yield fail(f"{text}: {port.error}", node, "ss -ltnp")


def tokens(examined: Examined) -> Iterator[Finding]:
    """Whether tokens end soon. All nodes have the same ones; the first that reports counts."""
    for facts in list(examined.nodes.values())[:1]:
        for token in facts.ending_tokens:
            left_s = (token.ends_ms - examined.now_ms) / 1000
            if left_s <= 0:
                text = f"token {token.token_id} has ended"
                yield warn(text, cure=f"streamd token revoke {token.token_id}")
            else:
                text = f"token {token.token_id} ends in {span(left_s)}"
                yield warn(text, cure=f"streamd token rotate {token.token_id} --expires 90d")
        if examined.status is not None and not facts.ending_tokens:
            yield ok("none ends within 30 days")
