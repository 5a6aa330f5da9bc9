"""Whether a node may vote: not while its disk lacks entries that it once confirmed.

A committed entry may owe its majority to that confirmation. Counterexample: of three nodes, 1 and
2 hold entry 5, which is committed; 2 loses it and votes for 3, which never had it; 3 leads without
a committed entry. A leader elected without this node's vote has the entry, because another node of
that majority voted. So the node may follow any leader, and may vote again once it holds what it
lost.

Its own notes tell only roughly how much it lost: the floor may be a second old. But every later
leader has what the node confirmed, and so has the leader to which it confirmed it. So the node must
also reach the end of a leader's log as of a moment after the loss. The leader's commit index would
not do: the leader may still count a lost confirmation for a later entry. And a heartbeat may have
been on its way since before the loss, so it counts only if it repeats the number (`life`) that this
process gave itself.
"""

from __future__ import annotations

from random import Random

from streamd.raft.log import Log
from streamd.raft.messages import NO_LIFE


class VoteEligibility:
    """`trusted_from_index` is the end of the log when it was last known to be whole."""

    def __init__(self, may_vote: bool, trusted_from_index: int, random: Random) -> None:
        self.may_vote = may_vote
        self.life = NO_LIFE if may_vote else random.randrange(NO_LIFE + 1, 2**32)
        self._trusted_from_index = trusted_from_index
        # None until a leader has reported its log's end; a later leader's log may be shorter.
        self._leader_last_index: int | None = None

    def heard_leader(self, last_index: int, life: int) -> None:
        """A leader's log reached `last_index` when it sent this, and it knew of that life."""
        # Leaders of 0.1.0 know of none, and say 0.
        if life in (self.life, 0):
            self._leader_last_index = last_index

    def heard_commit(self, commit_index: int, log: Log) -> None:
        """A leader has committed up to `commit_index`; the part that this node holds counts."""
        if not self.may_vote and self._leader_last_index is not None:
            reached = min(commit_index, log.commit_index, log.stable_index)
            self.may_vote = reached >= max(self._trusted_from_index, self._leader_last_index)
