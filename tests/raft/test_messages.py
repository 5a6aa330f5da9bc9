"""Peer messages are the same after the wire, and nodes one version apart understand each other."""

from __future__ import annotations

import msgspec
import pytest

from streamd.raft.membership import decode_configuration, encode_configuration
from streamd.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Configuration,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    Message,
    ReadReply,
    ReadRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

MESSAGES: list[Message] = [
    VoteRequest(1, 2, 3, 9, 2, True, True),
    VoteReply(2, 1, 3, False, True),
    AppendRequest(1, 2, 3, 9, 2, 8, [Entry(10, 3, EntryKind.COMMANDS, b"\x00\xff")]),
    AppendAccepted(2, 1, 3, 10),
    AppendRejected(2, 1, 3, 9, 4, 1, True),
    Heartbeat(1, 2, 3, 8, 77),
    HeartbeatReply(2, 1, 3, 77, 5),
    TimeoutNow(1, 2, 3),
    ReadRequest(2, 1, 3, 1 << 62, 7),
    ReadReply(1, 2, 3, 1 << 62, 7, 99),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_the_same_after_the_wire(message: Message) -> None:
    encoded = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(encoded, type=Message) == message


def test_a_field_that_an_older_node_does_not_send_has_its_default() -> None:
    older = msgspec.msgpack.encode([6, 1, 2, 3, 8])
    assert msgspec.msgpack.decode(older, type=Message) == Heartbeat(1, 2, 3, 8, 0)


def test_a_field_that_only_a_newer_node_knows_is_ignored() -> None:
    newer = msgspec.msgpack.encode([7, 2, 1, 3, 77, 5, "new"])
    assert msgspec.msgpack.decode(newer, type=Message) == HeartbeatReply(2, 1, 3, 77, 5)


def test_a_configuration_without_an_address_field_has_no_addresses() -> None:
    older = msgspec.msgpack.encode([[1, 2], [], [3]])
    assert decode_configuration(older) == Configuration((1, 2), (), (3,), ())


def test_a_configuration_carries_addresses() -> None:
    configuration = Configuration((1,), (), (), ((1, "a:1", "b:2"),))
    assert decode_configuration(encode_configuration(configuration)) == configuration
