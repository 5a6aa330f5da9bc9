"""Whether a node may vote: not while its disk lacks entries that it once confirmed.

A majority may owe a committed entry to that confirmation. Whoever is elected without the node's
vote has the entry nevertheless, because some other node of that majority voted; so the node may
follow any leader, and is as good as before once it holds what it lost.
"""

from __future__ import annotations

from streamd.raft.log import Log


class Trust:
    """`trusted_from_index` is where the log had been when it was last known to be whole."""

    def __init__(self, may_vote: bool, trusted_from_index: int) -> None:
        self.may_vote = may_vote
        self._trusted_from_index = trusted_from_index

    def heard_commit(self, commit_index: int, log: Log) -> None:
        """A leader has committed up to `commit_index`; what this node holds of it counts."""
        if not self.may_vote:
            reached = min(commit_index, log.commit_index, log.stable_index)
            self.may_vote = reached >= self._trusted_from_index
