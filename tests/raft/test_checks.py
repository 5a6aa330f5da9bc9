"""Messages that no correct peer sends are found, whatever the receiver's state."""

from __future__ import annotations

import pytest

from streamd.raft.chain import ChainPosition, chain
from streamd.raft.checks import fault
from streamd.raft.membership import encode_configuration
from streamd.raft.messages import (
    AppendRequest,
    CommitNotice,
    Configuration,
    Entry,
    EntryKind,
    Heartbeat,
    Message,
)


def append(*entries: Entry, term: int = 3) -> AppendRequest:
    return AppendRequest(1, 2, term, 4, 2, 4, list(entries))


def entry(index: int, term: int, kind: int = EntryKind.COMMANDS, payload: bytes = b"x") -> Entry:
    return Entry(index, term, kind, payload)


def configuration(*voters: int) -> bytes:
    return encode_configuration(Configuration(voters))


@pytest.mark.parametrize(
    "message",
    [
        append(),
        append(entry(5, 2), entry(6, 3)),
        append(entry(5, 3, EntryKind.CONFIGURATION, configuration(1, 2))),
        Heartbeat(1, 2, 3, 7, last_index=7),
        CommitNotice(1, 2, 3, 7),
    ],
)
def test_messages_of_a_correct_peer_pass_the_checks(message: Message) -> None:
    assert fault(message) is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (append(entry(6, 3)), "entry 6 follows entry 4"),
        (append(entry(5, 3), entry(5, 3)), "entry 5 follows entry 5"),
        (append(entry(5, 1)), "of term 1 follows one of term 2"),
        (append(entry(5, 3, 99)), "unknown kind 99"),
        (append(entry(5, 3, EntryKind.CONFIGURATION, b"\xc1")), "entry 5 does not hold"),
        (append(entry(5, 3, EntryKind.CONFIGURATION, configuration())), "entry 5 does not hold"),
        (append(entry(5, 3, EntryKind.CONFIGURATION, configuration(0))), "entry 5 does not hold"),
        (append(entry(5, 4)), "of term 4 is sent in term 3"),
        (Heartbeat(1, 2, 3, 7, last_index=6), "more than its log holds"),
    ],
)
def test_messages_that_no_correct_peer_sends_are_found(message: Message, reason: str) -> None:
    assert reason in (fault(message) or "")


def test_the_chain_depends_on_every_field_of_an_entry_and_on_earlier_entries() -> None:
    before = ChainPosition(4, 2, 77)
    after = before.next(0, entry(5, 3))
    assert after == ChainPosition(5, 3, chain(77, 0, entry(5, 3)))
    others = [
        before.next(1, entry(5, 3)),
        before.next(0, entry(5, 2)),
        before.next(0, entry(5, 3, EntryKind.NOOP)),
        before.next(0, entry(5, 3, payload=b"y")),
        ChainPosition(4, 2, 78).next(0, entry(5, 3)),
    ]
    assert after.chain not in {other.chain for other in others}
    with pytest.raises(AssertionError):
        before.next(0, entry(6, 3))
