"""From one configuration to the next by joint consensus (thesis 4.3).

Old and new voters decide together until the joint configuration is committed; after that the new
ones decide alone. So there are never two disjoint majorities, whatever a change replaces at once,
and changes need not go one node at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamd.raft.interface import InvalidConfiguration
from streamd.raft.messages import Configuration


def checked(target: Configuration) -> Configuration:
    """`target` in canonical order. Raises `InvalidConfiguration`."""
    voters, learners = _ids("voters", target.voters), _ids("learners", target.learners)
    if not voters:
        raise InvalidConfiguration("a group needs at least one voter")
    if both := sorted({*voters} & {*learners}):
        raise InvalidConfiguration(f"{both} would be voters and learners at once")
    located = _ids("addresses", [node_id for node_id, _, _ in target.addresses])
    if strangers := sorted({*located} - {*voters, *learners}):
        raise InvalidConfiguration(f"there are addresses for {strangers}, which are no members")
    return Configuration(voters, (), learners, tuple(sorted(target.addresses)))


def _ids(what: str, ids: Sequence[int]) -> tuple[int, ...]:
    if len({*ids}) < len(ids):
        raise InvalidConfiguration(f"the {what} name a node twice: {sorted(ids)}")
    if min(ids, default=1) < 1:
        raise InvalidConfiguration(f"node ids begin at 1, the {what} are {sorted(ids)}")
    return tuple(sorted(ids))


def first_step(current: Configuration, target: Configuration) -> Configuration:
    """What to append to get from `current`, which is not joint, to a checked `target`.

    A node that leaves keeps its address: its vote counts until the joint configuration is
    committed.
    """
    if target.voters == current.voters:
        return target
    located = {node_id for node_id, _, _ in target.addresses}
    leaving = [
        address
        for address in current.addresses
        if address[0] not in located and address[0] in current.voters
    ]
    addresses = tuple(sorted([*target.addresses, *leaving]))
    return Configuration(target.voters, current.voters, target.learners, addresses)


def last_step(joint: Configuration) -> Configuration:
    """What to append once `joint` is committed."""
    members = {*joint.voters, *joint.learners}
    addresses = tuple(address for address in joint.addresses if address[0] in members)
    return Configuration(joint.voters, (), joint.learners, addresses)
