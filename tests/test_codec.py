"""The payload of log entries: decoding returns what was encoded."""

from __future__ import annotations

import msgspec
import pytest

from streamd.streams.codec import Batch, decode_batch, encode_batch
from streamd.streams.commands import (
    Append,
    Command,
    Create,
    CreateBucket,
    Delete,
    OpenSession,
    RaiseLevel,
    RecordOperation,
    SetLimits,
    Sweep,
    Touch,
)
from streamd.streams.limits import Limits
from streamd.streams.model import ForkRequest, ProducerStamp, Settings
from streamd.streams.operations.model import Arguments, Operation, Step, StepRecord
from streamd.streams.token_commands import CreateToken, RevokeToken, RotateToken

COMMANDS: list[Command] = [
    Create(b"b\0s", Settings()),
    Create(b"b\0s", Settings("text/plain", 5000), True, b"\x00\xff", [1, 1], True),
    Create(b"b\0s", Settings(None, None, "2100-01-01T00:00:00+01:00", 4102441200000)),
    Create(b"b\0f", Settings(fork=ForkRequest(b"b\0s"))),
    Create(b"b\0f", Settings(fork=ForkRequest(b"b\0s", (1, 5), 3))),
    Append(b"b\0s", "text/plain", b"x", [1]),
    Append(b"b\0s", "", b"", [], True),
    Append(b"b\0\xff", "a/b", b"xyz", [1, 2], True, "ü", ProducerStamp("p", 2**53, 2**53)),
    Delete(b"b\0s"),
    Touch([]),
    Touch([(b"b\0s", 1, 1_700_000_000_000), (b"b\0t", 2**63, 0)]),
    Sweep([b"b\0s", b"b\0t"]),
    CreateBucket(b"b"),
    OpenSession(3, 2**63 - 1, 17),
    CreateToken(0, "ci", bytes(32), ["read:*"]),
    CreateToken(2**63 - 1, "ü", b"", [], 2**63 - 1),
    RotateToken(1, bytes(32), 5, 6),
    RevokeToken(1),
    SetLimits("bucket", "ü", Limits(1, 2, 3, 0, 0, 2**53 - 1, 7, 8)),
    SetLimits("identity", "*"),
    RaiseLevel(6),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_every_command_is_decoded_as_it_was_encoded(command: Command) -> None:
    batch = Batch(1_700_000_000_000, [command])
    assert decode_batch(encode_batch(batch)) == batch


def test_a_batch_keeps_its_time_and_the_order_of_its_commands() -> None:
    batch = Batch(123, COMMANDS)
    decoded = decode_batch(encode_batch(batch))
    assert decoded.now_ms == 123
    assert decoded.commands == COMMANDS


def test_an_empty_batch_is_a_batch() -> None:
    assert decode_batch(encode_batch(Batch(0, []))) == Batch(0, [])


def test_equal_batches_are_equal_bytes() -> None:
    assert encode_batch(Batch(1, COMMANDS)) == encode_batch(Batch(1, list(COMMANDS)))


def test_fields_that_older_versions_lack_have_their_defaults() -> None:
    payload = msgspec.msgpack.encode([7, [["append", b"b\0s", "a/b", b"x", [1]]]])
    assert decode_batch(payload) == Batch(7, [Append(b"b\0s", "a/b", b"x", [1])])
    payload = msgspec.msgpack.encode([7, [["create", b"b\0s", ["a/b"]]]])
    assert decode_batch(payload) == Batch(7, [Create(b"b\0s", Settings("a/b"))])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        encode_batch(Batch(1, COMMANDS))[:-1],
        encode_batch(Batch(1, [])) + b"\x00",
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode({"now_ms": 1, "commands": []}),
        msgspec.msgpack.encode([1, [["unheard-of", b"b\0s"]]]),
        msgspec.msgpack.encode([1, [["delete", "text"]]]),
        msgspec.msgpack.encode([1, [["append", b"b\0s", "a/b", b"x"]]]),
    ],
    ids=["empty", "no code", "cut", "longer", "short", "map", "unknown", "type", "field"],
)
def test_bytes_that_are_not_a_batch_are_refused(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_batch(payload)


OPERATION = Operation(
    3,
    2,
    "drain",
    Arguments(node_id=2),
    "ops",
    1000,
    (StepRecord(Step("stop", 2), 1, 1001, 1001, 77),),
    changed_at_ms=1001,
)

# Written by the first release that had the command; every later one must read it so.
GOLDEN: list[tuple[Command, str]] = [
    (
        CreateToken(7, "ci", b"\xd1\x6e", ["list:agents/"], None, b"\x9e\x51"),
        (
            "93019197ac6372656174652d746f6b656e07a26369c402d16e91ac6c6973743a6167656e74732fc0"
            "c4029e5190"
        ),
    ),
    (
        RotateToken(7, b"\xd1\x6e", 3_600_000, None, b"\x9e\x51"),
        "93019196ac726f746174652d746f6b656e07c402d16ece0036ee80c0c4029e5190",
    ),
    (RevokeToken(2**63 - 1), "93019192ac7265766f6b652d746f6b656ecf7fffffffffffffff90"),
    (
        SetLimits("bucket", "agents", Limits(max_bytes=2**40, max_streams=1000)),
        (
            "93019194aa7365742d6c696d697473a66275636b6574a66167656e747399c0c0c0c0c0cf0000010000"
            "000000cd03e8c0c090"
        ),
    ),
    (SetLimits("identity", "*"), "93019194aa7365742d6c696d697473a86964656e74697479a12ac090"),
    (
        RecordOperation(OPERATION),
        (
            "93019192b07265636f72642d6f7065726174696f6e9f0302a5647261696e940290a0cd2710a36f7073cd"
            "03e8919995a473746f7002a000a001cd03e9cd03e94dc200a0c2a772756e6e696e6700a0cd03e900c290"
            "9090"
        ),
    ),
    (RaiseLevel(6), "93019192ae72616973652d66656174757265730690"),
]


# As releases wrote them that lacked the last fields.
SHORTER: list[tuple[Command, str]] = [
    (
        SetLimits("bucket", "agents", Limits(max_bytes=2**40, max_streams=1000)),
        (
            "93019194aa7365742d6c696d697473a66275636b6574a66167656e747398c0c0c0c0c0cf0000010000"
            "000000cd03e8c090"
        ),
    ),
]


@pytest.mark.parametrize(("command", "golden"), SHORTER)
def test_shorter_commands_of_earlier_releases_are_read(command: Command, golden: str) -> None:
    assert decode_batch(bytes.fromhex(golden)).commands == [command]


@pytest.mark.parametrize(("command", "golden"), GOLDEN)
def test_commands_have_the_bytes_that_they_had(command: Command, golden: str) -> None:
    payload = encode_batch(Batch(1, [command]))
    assert payload.hex() == golden
    assert decode_batch(bytes.fromhex(golden)).commands == [command]


# Commands that have more fields since.
OLDER = [
    (
        CreateToken(7, "ci", b"\xd1\x6e", ["append:agents/run-*", "list:agents/"], 60_000),
        (
            "93019196ac6372656174652d746f6b656e07a26369c402d16e92b3617070656e643a6167656e7473"
            "2f72756e2d2aac6c6973743a6167656e74732fcdea6090"
        ),
    ),
    (
        RotateToken(7, b"\xd1\x6e", 3_600_000),
        "93019195ac726f746174652d746f6b656e07c402d16ece0036ee80c090",
    ),
]


@pytest.mark.parametrize(("command", "golden"), OLDER)
def test_commands_of_before_a_field_was_added_are_read(command: Command, golden: str) -> None:
    assert decode_batch(bytes.fromhex(golden)).commands == [command]
