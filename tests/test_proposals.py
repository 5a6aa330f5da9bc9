"""What becomes of commands on their way into the log."""

from __future__ import annotations

import trio
import trio.testing

from streamd.proposals import OutcomeUnknown, Proposal, give_up
from streamd.streams.commands import Sweep


async def test_each_of_several_writers_is_told_that_theirs_was_given_up() -> None:
    proposals = [Proposal(Sweep([]), 0, 0.0) for _ in range(3)]
    told: list[OutcomeUnknown] = []

    async def wait_for(proposal: Proposal) -> None:
        try:
            await proposal.settled()
        except OutcomeUnknown as error:
            told.append(error)

    async with trio.open_nursery() as nursery:
        for proposal in proposals:
            nursery.start_soon(wait_for, proposal)
        await trio.testing.wait_all_tasks_blocked()
        give_up(proposals, OutcomeUnknown("the leader changed"))
    assert [str(error) for error in told] == ["the leader changed"] * 3
    assert len(set(map(id, told))) == 3, "an error that two tasks raise gathers the traces of both"
