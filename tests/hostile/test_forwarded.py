"""Forwarded commands are checked as the API checks them, and old logs may hold anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from streamd.group.proposals import Unavailable, decode_answers, outcome_in
from streamd.group.stores import Stores
from streamd.raft.core import RaftViolation
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.checks import fault
from streamd.streams.codec import Batch, encode_batch
from streamd.streams.cold.scrubs import Scrub
from streamd.streams.commands import (
    Append,
    Archived,
    BeginUpload,
    Command,
    Create,
    CreateBucket,
    Delete,
    DropSlices,
    DropUploads,
    FlushCold,
    ForgetPacks,
    PublishSnapshot,
    Result,
    Scrubbed,
    StorePart,
    Touch,
)
from streamd.streams.model import (
    ForkRequest,
    LogPosition,
    ProducerStamp,
    Settings,
    Verdict,
    VerifiedPosition,
)
from tests.sim.runtime import run_virtually
from tests.support.machines import Machines, Scenario, all_ready, play
from tests.support.nodes import append, append_to, create, in_thread, key, read_all, running_node

_JSON = "application/json"
_APPEND = append("a", b"x")
_JSON_APPEND = append("a", b'[1, {"two": 2}]', _JSON)
_FORK = replace(
    create("f"),
    settings=Settings(fork=ForkRequest(key("a"), (1, 1), 2)),
    finding=VerifiedPosition(1, Verdict.BOUNDARY, 2, 3),
)
_PUBLISH = PublishSnapshot(
    key("a"),
    (1, 1),
    "text/plain",
    1,
    bytes(32),
    0,
    b"s",
    VerifiedPosition(1, Verdict.BOUNDARY, 1, 1),
)

HONEST: list[Command] = [
    _APPEND,
    _JSON_APPEND,
    append("a", b"[" + b"1," * 100_000 + b"1]", _JSON),
    Append(key("a"), "", b"", [], close=True),
    replace(_APPEND, producer=ProducerStamp("é", 0, 2**53 - 1), seq="1"),
    create("a"),
    _FORK,
    Create(b"_default\0a/b", Settings(), cut_as="text/plain", data=b"x", lengths=[1]),
    Create(key("a"), Settings(None, None, "2030-01-01T00:00:00Z", 1893456000000)),
    CreateBucket(b"bucket"),
    _PUBLISH,
    BeginUpload(key("a"), (1, 1), VerifiedPosition()),
    StorePart(7, 0, b"part"),
    DropUploads([7]),
    Touch([(key("a"), 1, 5)]),
]

FORGED: dict[str, Command] = {
    "key without a bucket": Create(b"no-nul-here", Settings(), implicit_bucket=True),
    "key without a name": Create(b"bucket\0", Settings(), implicit_bucket=True),
    "key of a blob": Create(b"\0" + bytes(8), Settings(), implicit_bucket=True),
    "key with a control character": Delete(b"bucket\0a\nb"),
    "key that is not UTF-8": Delete(b"bucket\0\xff"),
    "key beyond any path": Delete(b"bucket\0" + b"a" * 1024),
    "key that climbs": Delete(b"bucket\0a/../b"),
    "reserved bucket": CreateBucket(b"cluster"),
    "short bucket": CreateBucket(b"b"),
    "lengths that differ": replace(_APPEND, lengths=[2]),
    "lengths below nothing": replace(_APPEND, lengths=[2, -1]),
    "records without bytes": replace(_APPEND, data=b"", lengths=[0]),
    "nothing at all": Append(key("a"), "", b"", []),
    "no JSON": replace(_JSON_APPEND, data=b"{,", lengths=[2]),
    "JSON cut elsewhere": replace(_JSON_APPEND, lengths=list(reversed(_JSON_APPEND.lengths))),
    "JSON without its comma": replace(_JSON_APPEND, data=b"1 ", lengths=[2]),
    "two lines for a media type": replace(_APPEND, content_type="text/plain\r\nX: y"),
    "no media type": replace(_APPEND, content_type="text"),
    "producer without a name": replace(_APPEND, producer=ProducerStamp("", 0, 0)),
    "producer before time": replace(_APPEND, producer=ProducerStamp("p", -1, 0)),
    "producer beyond all": replace(_APPEND, producer=ProducerStamp("p", 0, 2**53)),
    "sequence of no header": replace(_APPEND, seq="\u0100"),
    "window below nothing": Create(key("a"), Settings(None, -1)),
    "window and expiry": Create(key("a"), Settings(None, 1, "2030-01-01T00:00:00Z", 1893456000000)),
    "expiry of no calendar": Create(key("a"), Settings(None, None, "soon", 1893456000000)),
    "expiry of no time": Create(key("a"), Settings(None, None, "2030-01-01T00:00:00Z", 2**60)),
    "fork found nowhere": replace(_FORK, finding=None),
    "fork found elsewhere": replace(_FORK, finding=VerifiedPosition(1, Verdict.BOUNDARY, 2, 9)),
    "fork before the beginning": replace(
        _FORK, finding=VerifiedPosition(1, Verdict.BOUNDARY, -2, 3)
    ),
    "snapshot found elsewhere": replace(
        _PUBLISH, finding=VerifiedPosition(1, Verdict.BOUNDARY, 2, 1)
    ),
    "snapshot of another size": replace(_PUBLISH, size=2),
    "snapshot without a digest": replace(_PUBLISH, digest=b""),
    "upload below nothing": StorePart(-1, 0, b"x"),
    "read below nothing": Touch([(key("a"), -1, 5)]),
}


@pytest.mark.parametrize("command", HONEST, ids=lambda command: type(command).__name__)
def test_commands_of_clients_pass_the_checks(command: Command) -> None:
    assert fault(command) is None


@pytest.fixture(name="play")
def _play(tmp_path: Path) -> Callable[[Scenario], None]:
    return lambda scenario: run_virtually(1, partial(play, scenario, tmp_path))


def _encoded(*commands: Command) -> bytes:
    return msgspec.msgpack.encode([(command, 0) for command in commands])


def test_forged_commands_are_refused_and_their_neighbours_proposed(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await all_ready(machines)
        payload = _encoded(create("a"), *FORGED.values(), _APPEND)
        answers = await second.node.cluster.forward(leader.node_id, payload)  # type: ignore[union-attr]
        results = [outcome_in(settled).result for settled in decode_answers(answers)]
        named = dict(zip(FORGED, results[1:-1], strict=True))
        assert [name for name, result in named.items() if result is not Result.INVALID] == []
        assert (results[0], results[-1]) == (Result.CREATED, Result.APPENDED)
        assert leader.node.group.admission.refused_commands == len(FORGED)
        assert leader.node.group.state.header.streams == 1

    play(scenario)


def test_only_the_leader_proposes_commands_about_its_own_state(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await all_ready(machines)
        term, index = leader.node.group.view.term, leader.node.group.view.last_index
        archived = Archived(term, LogPosition(), LogPosition(index))
        payload = _encoded(
            FlushCold(term, 1, "p", 1, []),
            archived,
            Scrubbed(term, Scrub(missing_count=1)),
            DropSlices(1, [1]),
            ForgetPacks([(1, 1)]),
        )
        answers = await second.node.cluster.forward(leader.node_id, payload)  # type: ignore[union-attr]
        *of_a_term, dropped, forgotten = decode_answers(answers)
        assert [outcome_in(one).result for one in of_a_term] == [Result.STALE] * 3
        for refused in (dropped, forgotten):
            with pytest.raises(Unavailable):
                outcome_in(refused)
        assert leader.node.group.view.last_index == index

    play(scenario)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", _encoded(_APPEND)[:-1], b"\x91\x92\x91\xa3new\x00", b"\x91" * 5000]
)
def test_undecodable_commands_are_refused(payload: bytes, play: Callable[[Scenario], None]) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await all_ready(machines)
        with pytest.raises(Unavailable, match="cannot decode"):
            await second.node.cluster.forward(leader.node_id, payload)  # type: ignore[union-attr]

    play(scenario)


async def test_a_node_starts_with_a_forged_command_in_its_log(tmp_path: Path) -> None:
    """An earlier release proposed it, and then failed at each start."""
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        await append_to(node, "a", b"before")
    stores = await in_thread(Stores.open, tmp_path, 1)
    last = stores.log.last_index
    commands: list[Command] = [
        Create(b"no-nul-here", Settings(), implicit_bucket=True),
        append("a", b"beside"),
    ]
    payload = encode_batch(Batch(1, commands))
    entry = Entry(last + 1, stores.log.hard_state.term, EntryKind.COMMANDS, payload)
    await in_thread(stores.log.append, [entry], None)
    stores.close()
    for _ in range(2):
        async with running_node(tmp_path) as node:
            assert await read_all(node, "a") == b"beforebeside"
            assert node.group.state.header.streams == 1
    async with running_node(tmp_path) as node:
        await append_to(node, "a", b"after")
        assert await read_all(node, "a") == b"beforebesideafter"


async def test_an_entry_that_a_later_release_wrote_stops_the_node_with_advice(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
    stores = await in_thread(Stores.open, tmp_path, 1)
    last, term = stores.log.last_index, stores.log.hard_state.term
    payload = msgspec.msgpack.encode([1, [["unheard-of", b"b\0s"]]])
    await in_thread(stores.log.append, [Entry(last + 1, term, EntryKind.COMMANDS, payload)], None)
    stores.close()
    with pytest.RaisesGroup(
        pytest.RaisesExc(RaftViolation, match=f"entry {last + 1} .* the release that wrote it"),
        flatten_subgroups=True,
    ):
        async with running_node(tmp_path):
            pass
