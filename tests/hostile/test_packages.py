"""Packages of nodes, and their stamps, are checked as forwarded commands without numbers are."""

from __future__ import annotations

import msgspec
import pytest

from streamd.group.packages import decode_decision
from streamd.group.proposals import Unavailable
from streamd.group.session_opener import SessionRequest
from streamd.streams import keys
from streamd.streams.commands import Command, Delete, ForgetPacks, OpenSession, Result
from tests.support.machines import Machine, Machines, Play, all_ready, wait_until
from tests.support.nodes import append, create, key, read_all

_HONEST = append("a", b"x")
_LARGEST = 2**63 - 1


def package(*commands: Command, session_id: int = 1, sequence: int = 1, lowest: int = 1) -> bytes:
    return msgspec.msgpack.encode((session_id, sequence, lowest, False, commands))


async def begin(machines: Machines) -> tuple[Machine, Machine]:
    leader, second, _ = await all_ready(machines)
    await leader.node.group.writes.propose(create("a"))
    return leader, second


async def results(leader: Machine, sender: int, payload: bytes) -> list[Result]:
    answer = await leader.node.group.admission.propose_package(sender, payload)
    return [outcome.result for outcome in decode_decision(answer).outcomes]


@pytest.mark.parametrize(
    "forged", [Delete(b"no-nul-here"), ForgetPacks([(1, 1)]), OpenSession(1, 1, 0)]
)
def test_a_package_with_a_forged_command_does_nothing_at_all(forged: Command, play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second = await begin(machines)
        payload = package(_HONEST, forged)
        assert await results(leader, second.node_id, payload) == [Result.INVALID] * 2
        assert await read_all(leader.node, "a") == b""

    play(scenario)


@pytest.mark.parametrize(
    "stamp",
    [
        {"session_id": _LARGEST},
        {"sequence": _LARGEST, "lowest": _LARGEST, "session_id": 0},
        {"lowest": 2},
        {"sequence": 0, "lowest": 0, "session_id": 0},
    ],
)
def test_a_package_without_a_session_does_nothing(stamp: dict[str, int], play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second = await begin(machines)
        told = await results(leader, second.node_id, package(_HONEST, **stamp))
        assert told == [Result.SESSION_LOST]
        await second.node.group.writes.propose(append("a", b"y"))
        applied = leader.node.group.view.applied_index
        await wait_until(
            lambda: all(one.node.group.view.applied_index >= applied for one in machines.all)
        )
        assert await read_all(leader.node, "a") == b"y"

    play(scenario)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        package(),
        package(_HONEST, sequence=-1),
        package(_HONEST, lowest=2**63),
        msgspec.msgpack.encode((1, 1, 1, False, [["unheard-of"]])),
    ],
    ids=["empty", "without commands", "below nothing", "beyond all", "unknown"],
)
def test_malformed_packages_are_refused(payload: bytes, play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second = await begin(machines)
        with pytest.raises(Unavailable):
            await leader.node.group.admission.propose_package(second.node_id, payload)

    play(scenario)


def test_only_members_have_packages_and_sessions(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, _ = await begin(machines)
        with pytest.raises(Unavailable):
            await leader.node.group.admission.propose_package(99, package(_HONEST))
        request = msgspec.msgpack.encode(SessionRequest(1, 0))
        with pytest.raises(Unavailable):
            await leader.node.group.admission.open_session(99, request)
        assert leader.node.group.state.sessions.get(keys.number(99)) is None
        assert key("a") in leader.node.group.state.streams

    play(scenario)
