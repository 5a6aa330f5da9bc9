"""Writes of a group: commands on their way into the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import trio

from streamd.group.admission import PROPOSE_TIMEOUT_S, Admission
from streamd.group.proposals import Proposal, ProposalQueue, Settled, Unavailable
from streamd.group.state_flusher import StateFlusher
from streamd.group.touches import Touches
from streamd.group.view import GroupView
from streamd.streams.commands import Command, Outcome


class GroupWrites:
    """Takes the commands of this node for the log, here or at the leader.

    Invariants:

    - A write ends in one of three ways: with its outcome, when its entry is committed and applied;
      with `Unavailable`, when it never takes effect; with `OutcomeUnknown`, when no node can tell.
    - A cancelled caller ends nothing: the command stays on its way.
    - What waits is limited in commands and bytes, and each write in time.
    - Commands that wait together go into one entry, as many as it may hold.

    What other nodes send goes through `Group.admission`.
    """

    def __init__(
        self,
        admission: Admission,
        queue: ProposalQueue[Proposal],
        flusher: StateFlusher,
        view: GroupView,
        gathering: AbstractContextManager[None],
        now_ms: Callable[[], int],
    ) -> None:
        self._admission = admission
        self._queue = queue
        self._flusher = flusher
        self._view = view
        # A block without waiting whose writes are proposed together, and at its end.
        self.gathering = gathering
        # What the next sweep proposes: reads that renew streams, and uploads to remove.
        self.touches = Touches(now_ms)
        self.abandoned_uploads: list[int] = []

    async def propose(self, command: Command, size: int = 0) -> Outcome:
        """Propose `command` and wait for its outcome; `size` is its payload in bytes.

        A cancelled caller learns nothing: the command may still take effect.
        Raises `Unavailable` if it never will, `OutcomeUnknown` if no node can tell.
        """
        return await self.submit([command], size).outcome()

    def submit(
        self,
        commands: Sequence[Command],
        size: int = 0,
        tell: Callable[[Sequence[Settled]], None] | None = None,
    ) -> Proposal:
        """Propose commands as one `Proposal`, which says which may be together, without waiting;
        `size` is their payload in bytes. `tell` is called with what has become of each.

        It is called in a turn of the group, before the next batch goes to the disk, so it must be
        quick. Raises `Unavailable`; then it is never called.
        """
        proposal = Proposal(commands, size, trio.current_time() + PROPOSE_TIMEOUT_S, tell)
        self._admission.add(proposal)
        return proposal

    @property
    def taken(self) -> int:
        """How many commands of this node have left the queue."""
        return self._queue.taken

    async def have_room(self) -> None:
        """Wait until few changes wait to be stored. Raises `Unavailable`.

        A large upload waits here between two parts: otherwise it would fill memory up to the
        limit at which all writes wait.
        """
        if not await self._view.wait_for(lambda: self._flusher.has_room, PROPOSE_TIMEOUT_S):
            raise Unavailable("too many changes are waiting to be written to this node's disk")

    def abandon_upload(self, upload_id: int) -> None:
        """Remove an upload through the log, at some later time."""
        self.abandoned_uploads.append(upload_id)
