"""What becomes of commands on their way into the log."""

from __future__ import annotations

import outcome
import trio
import trio.testing

from streamd.group.proposals import (
    OutcomeUnknown,
    Proposal,
    decode_answers,
    decode_proposals,
    encode_answers,
    encode_proposals,
    fail_all,
)
from streamd.streams.commands import (
    Append,
    Command,
    Delete,
    DeleteBucket,
    Outcome,
    Result,
    Sweep,
)
from streamd.streams.model import IfMatch, Version
from streamd.streams.offsets import Position


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
        fail_all(proposals, OutcomeUnknown("the leader changed"))
    assert [str(error) for error in told] == ["the leader changed"] * 3
    assert len(set(map(id, told))) == 3, "an error that two tasks raise gathers the traces of both"


def test_conditions_and_what_became_of_them_travel_between_nodes() -> None:
    condition = IfMatch((Version(7, 1, 2, True), Version(8, 0, 0, False)))
    commands: list[Command] = [
        Append(b"b\0s", "text/plain", b"x", [1], if_match=condition),
        Delete(b"b\0s", IfMatch()),
        DeleteBucket(b"b"),
    ]
    sent = [Proposal(command, 1, 0.0) for command in commands]
    received = decode_proposals(encode_proposals(sent), 0.0)
    assert [proposal.command for proposal in received] == commands
    refused = Outcome(Result.PRECONDITION_FAILED, Position(3, 4), True, incarnation=7)
    [answer] = decode_answers(encode_answers([outcome.Value(refused)]))
    told = answer.unwrap()
    assert (told.result, told.tail, told.closed, told.incarnation) == (
        Result.PRECONDITION_FAILED,
        Position(3, 4),
        True,
        7,
    )
