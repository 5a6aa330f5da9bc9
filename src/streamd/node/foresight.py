"""Large writes that would change nothing are answered without the log.

The log would carry them to all members, body and all, only for the machine to refuse them. Small
ones do go through the log: a refused append of 100 bytes leaves some 150 there. This node's state
alone must not refuse one, because it may lack a write that made room, a client's own last one too;
to bring it up to date first puts a command in the log (`Sweep`) and takes as long as the append.
"""

from __future__ import annotations

from streamd.group.group import Group
from streamd.group.proposals import OutcomeUnknown
from streamd.node.reads import Reads
from streamd.streams import keys, quotas
from streamd.streams.commands import Append, Command, Create, Outcome, PublishSnapshot, Sweep
from streamd.streams.queries.foresight import foresee
from streamd.streams.state import stream_keys

# A write with a payload of at most this many bytes is small.
SMALL_WRITE_BYTES = 64 * 1024


class Foresight:
    """Proposes writes whose outcome this node's state does not tell.

    The machine has the last word. No write that it would accept is refused here: before that, the
    node's state is brought up to date with all that was acknowledged to anybody, and with all
    writes that came to this node before. A duplicate is answered as the machine answers it.
    """

    def __init__(self, group: Group, reads: Reads) -> None:
        self._group = group
        self._reads = reads

    async def propose(self, command: Command, size: int = 0) -> Outcome:
        """As `GroupWrites.propose`."""
        if size > SMALL_WRITE_BYTES:
            outcome = await self.outcome(command)
            if outcome is not None:
                return outcome
        return await self._group.writes.propose(command, size)

    async def outcome(self, command: Command) -> Outcome | None:
        """The outcome of a command that changes nothing; None if it may change something.

        Raises `Unavailable`.
        """
        # This state may be old, which costs such a write a round trip and a refusal nothing.
        if await self._look(command) is None:
            return None
        try:
            await self._group.writes.propose(Sweep([]))
            await self._group.reads.catch_up()
        except OutcomeUnknown:
            return None
        outcome = await self._look(command)
        if outcome is not None and outcome.result in quotas.REFUSALS:
            quotas.note_refusal(self._group.state, outcome.result)
        return outcome

    async def _look(self, command: Command) -> Outcome | None:
        if not isinstance(command, Append | Create | PublishSnapshot):
            return None
        for key in stream_keys(command):
            await self._reads.stream(key)
        await self._reads.bucket(keys.bucket_of(command.key))
        return foresee(self._group.machine, command, self._group.now_ms())
