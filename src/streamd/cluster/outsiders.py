"""Whether this node is a member of its cluster; if not, why, and what its operator can do."""

from __future__ import annotations

from collections.abc import Sequence

from streamd.group.peers import Outsider
from streamd.protocol.problems import Problem
from streamd.raft.messages import Configuration
from streamd.transport import Refusal

_NEVER_AGAIN = "never use its id again"


def outsider_of(
    node_id: int, address: str, configuration: Configuration, refusals: Sequence[Refusal]
) -> Outsider | None:
    """Why a node is not a member; None if it is one. `configuration` is the one in its log,
    `refusals` what other nodes answered when it dialled them last."""
    members = configuration.members()
    if node_id in members:
        return None
    if members:
        return Outsider(
            Problem.NODE_REMOVED,
            "removed",
            f"node {node_id} has been removed from the cluster, whose members are "
            f"{', '.join(map(str, sorted(members)))}: ask one of them. Stop this node, and "
            f"{_NEVER_AGAIN}; to return, it needs a new id and an empty data directory",
        )
    for refusal in refusals:
        if refusal.code == "DATA_LOST":
            return Outsider(
                Problem.NODE_DATA_LOST,
                "data lost",
                f"node {node_id} is a member of the cluster, but its data directory is empty. If "
                "the data are elsewhere (another server.data_dir, a disk that is not mounted), "
                "start it with them; otherwise `streamd cluster remove` it at another node, and "
                f"start it with a new id, which `streamd cluster add` adds; {_NEVER_AGAIN}",
            )
    said = "".join(f"; a peer refused it: {refusal}" for refusal in refusals)
    return Outsider(
        Problem.NODE_NOT_ADDED,
        "waiting",
        f"node {node_id} is not a member of a cluster yet. A founder waits until all of "
        f"cluster.routes answer; add a later node with `streamd cluster add {address}` at a "
        f"member{said}",
    )
