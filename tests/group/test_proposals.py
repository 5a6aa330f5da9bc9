"""Outcomes of commands on their way into the log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from streamd.group.proposals import (
    OutcomeUnknown,
    Proposal,
    Settled,
    Unavailable,
    decode_answers,
    decode_proposals,
    encode_answers,
    encode_proposals,
    fail_all,
    outcome_in,
)
from streamd.streams.commands import Append, Command, Delete, DeleteBucket, Outcome, Result, Sweep
from streamd.streams.model import IfMatch, Version
from streamd.streams.offsets import Position
from streamd.streams.subscriptions.model import WakeReport


async def test_each_waiting_writer_learns_that_its_command_failed() -> None:
    proposals = [Proposal([Sweep([])], 0, 0.0) for _ in range(3)]
    told: list[OutcomeUnknown] = []

    async def wait_for(proposal: Proposal) -> None:
        try:
            await proposal.outcome()
        except OutcomeUnknown as error:
            told.append(error)

    async with trio.open_nursery() as nursery:
        for proposal in proposals:
            nursery.start_soon(wait_for, proposal)
        await trio.testing.wait_all_tasks_blocked()
        fail_all(proposals, OutcomeUnknown("the leader changed"))
    assert [str(error) for error in told] == ["the leader changed"] * 3
    assert len(set(map(id, told))) == 3, "an error that two tasks raise gathers the traces of both"


def test_commands_with_conditions_travel_between_nodes() -> None:
    condition = IfMatch((Version(7, 1, 2, True), Version(8, 0, 0, False)))
    commands: list[Command] = [
        Append(b"b\0s", "text/plain", b"x", [1], if_match=condition),
        Delete(b"b\0s", IfMatch()),
        DeleteBucket(b"b"),
    ]
    sent = [Proposal([commands[0]], 1, 0.0), Proposal(commands[1:], 0, 0.0)]
    received = decode_proposals(encode_proposals(sent), 0.0)
    assert [proposal.commands for proposal in received] == [[command] for command in commands]


def test_every_field_of_an_outcome_reaches_the_node_that_forwarded_the_command() -> None:
    """Including fields added later: a client at a follower sees what a client at the leader
    sees."""
    others: dict[type, Any] = {
        bool: True,
        str: "text/plain",
        int: 42,
        Position: Position(3, 4),
        type(None): WakeReport(7, 8, "w_1", "worker", 9, True, "marker", 10),
    }
    fields = msgspec.structs.fields(Outcome)[1:]
    found = Outcome(Result.APPENDED, *[others[type(field.default)] for field in fields])
    assert all(getattr(found, field.name) != field.default for field in fields)
    [answer] = decode_answers(encode_answers([found]))
    assert answer == found


# As a release with log format 0 encodes and decodes them; such nodes forward commands without
# sessions.
_FORMER_OUTCOME = (
    b"\x9b\xc0\xc2\xa8appended\x92\x03\t\xc3\xaatext/plain\x01\x02\x03\x92\x01\x02\x07"
)
_FORMER_DEFAULTS = b"\xc0\x92\x00\x00\xc2\xa0\x00\x00\x00\x92\x00\x00\x00"
_FORMER_UNAVAILABLE = b"\x9b\xa2no\xc2" + _FORMER_DEFAULTS
_FORMER_UNKNOWN = b"\x9b\xa2hm\xc3" + _FORMER_DEFAULTS


def test_outcomes_from_the_earlier_release_are_decoded() -> None:
    payload = b"\x93" + _FORMER_OUTCOME + _FORMER_UNAVAILABLE + _FORMER_UNKNOWN
    found, refused, unknown = decode_answers(payload)
    assert found == Outcome(
        Result.APPENDED, Position(3, 9), True, "text/plain", 1, 2, 3, Position(1, 2), 7
    )
    with pytest.raises(Unavailable, match="no"):
        outcome_in(refused)
    with pytest.raises(OutcomeUnknown, match="hm"):
        outcome_in(unknown)


def test_the_earlier_release_decodes_our_outcomes() -> None:
    class EarlierAnswer(msgspec.Struct, array_like=True):
        refusal: str | None = None
        unknown: bool = False
        result: Result | None = None

    [found, *_] = decode_answers(b"\x91" + _FORMER_OUTCOME)
    # One more field at the end, which the earlier release skips.
    assert encode_answers([found]) == b"\x91\x9c" + _FORMER_OUTCOME[1:] + b"\xc0"
    errors: list[Settled] = [Unavailable("no"), OutcomeUnknown("hm")]
    answers = msgspec.msgpack.decode(encode_answers(errors), type=list[EarlierAnswer])
    assert answers == [EarlierAnswer("no", False), EarlierAnswer("hm", True)]


@pytest.mark.parametrize(
    "answer",
    [[], [None], [None, False], [None, False, None], [None, False, "heard-of-nowhere"], [1, False]],
)
def test_a_malformed_outcome_is_refused(answer: list[object]) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_answers(msgspec.msgpack.encode([answer]))
