"""What a Raft node stores and sends, as plain values.

All are immutable and encode as compact MessagePack arrays. A field may only be added at the end of
a struct, with a default, so that nodes one version apart understand each other.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

# Values that no peer can mean do not even decode. There is room to add one to any of these.
NodeId = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class EntryKind(IntEnum):
    """The meaning of an entry's payload."""

    NOOP = 0  # a leader's first entry; committing it commits everything before it
    COMMANDS = 1  # bytes for the state machine
    CONFIGURATION = 2  # an encoded `Configuration`, in force from the moment it is appended


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One place in the log. Indexes begin at 1; the core never looks into `payload`."""

    index: int
    term: int
    kind: int
    payload: bytes


class HardState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node must remember across restarts besides its log (thesis, figure 3.1).

    `vote` is the id of the node voted for in `term`, or 0; node ids begin at 1.
    """

    term: int = 0
    vote: int = 0


class Configuration(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The members of the group, ids in ascending order.

    While `voters_outgoing` is not empty the configuration is joint: elections and commits need a
    majority of both sets of voters (thesis 4.3). Learners receive the log and count for nothing.
    In a joint configuration a learner may be an outgoing voter, and counts as such until the end.

    `addresses` holds the members' addresses, as (node id, peer address, client address); the core
    passes them on and never reads them.
    """

    voters: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    addresses: tuple[tuple[int, str, str], ...] = ()

    def members(self) -> set[int]:
        return {*self.voters, *self.voters_outgoing, *self.learners}

    def has(self, node_id: int) -> bool:
        return self.is_voter(node_id) or node_id in self.learners

    def is_voter(self, node_id: int) -> bool:
        return node_id in self.voters or node_id in self.voters_outgoing


class PeerMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="type"):
    """The first fields of all messages: sender, receiver and the sender's term."""

    sender: NodeId
    to: NodeId
    term: Number


class VoteRequest(PeerMessage, frozen=True, tag=1):
    """A candidate asks for a vote (RequestVote, thesis 3.4), or whether it would get one.

    With `pre_vote` the term is the one in which the sender would campaign, not one that it has
    entered (thesis 9.6). With `transfer` the leader itself asked the sender to take over, so its
    voters need not protect it (thesis 4.2.3).
    """

    last_index: Number
    last_term: Number
    pre_vote: bool = False
    transfer: bool = False


class VoteReply(PeerMessage, frozen=True, tag=2):
    """A grant carries the term it was asked for; a refusal carries the refuser's term."""

    granted: bool
    pre_vote: bool = False


class AppendRequest(PeerMessage, frozen=True, tag=3):
    """The leader's entries after (`prev_index`, `prev_term`), and how far it has committed."""

    prev_index: Number
    prev_term: Number
    commit_index: Number
    entries: list[Entry]


class AppendAccepted(PeerMessage, frozen=True, tag=4):
    """The sender's log equals the leader's up to `match_index`, on the sender's disk."""

    match_index: Number


class AppendRejected(PeerMessage, frozen=True, tag=5):
    """The sender's log does not hold (`prev_index`, prev_term) of the request.

    The two logs agree at `hint_index` at the latest, where the sender's entry has term
    `hint_term`. `lost_entries` takes back earlier confirmations: the sender's disk has lost those
    entries.
    """

    prev_index: Number
    hint_index: Number
    hint_term: Number
    lost_entries: bool = False


NO_LIFE = 1


class Heartbeat(PeerMessage, frozen=True, tag=6):
    """The leader is alive. `commit_index` never exceeds what the receiver is known to hold.

    `round` numbers the leader's read rounds; the reply repeats it. `last_index` is the end of the
    leader's log, so that a follower knows how far it lags. `life` is that of the receiver's last
    reply, `NO_LIFE` before one came; 0 is from a leader of 0.1.0, which does not repeat it.
    """

    commit_index: Number
    round: Number = 0
    last_index: Number = 0
    life: Number = 0


class CommitNotice(PeerMessage, frozen=True, tag=11):
    """The leader has committed `commit_index`, which the receiver is known to hold.

    It is not answered. It saves a round trip for each entry that nothing follows which could
    carry the news; if it is lost, the next heartbeat says the same.
    """

    commit_index: Number


class HeartbeatReply(PeerMessage, frozen=True, tag=7):
    """Sent at once, not after a disk write: it says only which term the sender is in.

    `life` is a number of the sender's process if its log has lost entries: a heartbeat that repeats
    it was sent after the loss.
    """

    round: Number = 0
    life: Number = NO_LIFE


class TimeoutNow(PeerMessage, frozen=True, tag=8):
    """The leader asks the receiver to campaign at once (thesis 3.10)."""


class ReadRequest(PeerMessage, frozen=True, tag=9):
    """A follower asks the leader for an index to read at.

    The reply repeats both numbers. `life` differs between two runs of one node, so that an answer
    to one is never taken for an answer to the other.
    """

    life: Number
    round: Number


class ReadReply(PeerMessage, frozen=True, tag=10):
    """Reads of that round and of all earlier ones are linearizable once `index` is applied."""

    life: Number
    round: Number
    index: Number


Message = (
    VoteRequest
    | VoteReply
    | AppendRequest
    | AppendAccepted
    | AppendRejected
    | Heartbeat
    | HeartbeatReply
    | CommitNotice
    | TimeoutNow
    | ReadRequest
    | ReadReply
)
