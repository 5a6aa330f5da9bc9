"""Sessions of nodes: what a node sends to the log twice takes effect once (thesis section 6.3).

A node sends its clients' commands in numbered packages, and sends a package again when it cannot
know the outcome. The state remembers, for each node, the outcomes of the packages that the node
may still send again; a second copy in the log gets the outcomes of the first and does nothing.
Everything here is a function of the log, so all replicas decide alike.
"""

from __future__ import annotations

import msgspec

from streamd.streams import keys
from streamd.streams.bounds import Number
from streamd.streams.commands import OpenSession, Outcome, Result
from streamd.streams.tables import Table

# How many packages of a node may be remembered at once. A node keeps fewer undecided.
MAX_REMEMBERED = 256


class PackageStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The owner and number of a package: a run of `count` commands in a log entry.

    `sequence` numbers the packages of a session; `lowest` is the lowest one that the node may
    still send again, as of when it sent this copy.
    """

    node_id: Number
    session_id: Number
    sequence: Number
    lowest: Number
    count: Number


class WriteSession(msgspec.Struct, array_like=True, gc=False):
    """What the state remembers about a node: its session, and the outcomes of its packages.

    `session_id` is the index of the log entry that opened it. `lowest` is the lowest package that
    the node may still send again, as far as the log says.
    """

    session_id: int
    nonce: int
    lowest: int = 0
    outcomes: dict[int, list[Outcome]] = {}

    def admits(self, stamp: PackageStamp) -> bool:
        """Whether a copy of the package may be applied, or was before: it belongs to this session,
        and the node still waits for it. A node with too many remembered packages gets no more."""
        if stamp.session_id != self.session_id or stamp.lowest > stamp.sequence:
            return False
        if stamp.sequence < self.lowest:
            return False
        known = self.outcomes.get(stamp.sequence)
        if known is not None:
            return len(known) == stamp.count
        remembered = self.outcomes
        return (
            len(remembered) < MAX_REMEMBERED
            or sum(sequence >= stamp.lowest for sequence in remembered) < MAX_REMEMBERED
        )

    def forget_below(self, lowest: int) -> None:
        """Forget the outcomes of packages that the node will not send again."""
        if lowest > self.lowest:
            self.lowest = lowest
            for sequence in [known for known in self.outcomes if known < lowest]:
                del self.outcomes[sequence]


def open_session(sessions: Table[WriteSession], command: OpenSession, index: int) -> Outcome:
    """Open the session that log entry `index` asks for."""
    key = keys.number(command.node_id)
    session = sessions.get(key)
    if session is not None and session.nonce == command.nonce:
        return Outcome(Result.DONE)
    if command.replaces != (0 if session is None else session.session_id):
        return Outcome(Result.STALE)
    sessions.put(key, WriteSession(index, command.nonce))
    return Outcome(Result.DONE)
