"""What followers forward to the leader, and what happens to it when the leader changes or is
missing."""

from __future__ import annotations

import msgspec
import pytest
import trio

from streamd.config.settings import ServerConfig
from streamd.group.proposals import (
    OutcomeUnknown,
    Proposal,
    Unavailable,
    decode_answers,
    encode_proposals,
    outcome_in,
)
from streamd.streams.commands import Delete, Result
from tests.support.machines import Machine, Machines, Play, all_ready, wait_until
from tests.support.nodes import append, append_to, create, key

_TTL_MS = 600_000


async def begin(machines: Machines) -> tuple[Machine, Machine, Machine]:
    """The leader and the two others, all ready, with a stream that has a sliding window."""
    leader, second, third = await all_ready(machines)
    await leader.node.group.writes.propose(create("a", ttl_ms=_TTL_MS))
    created = leader.node.group.view.commit_index
    await wait_until(lambda: all(m.node.group.view.applied_index >= created for m in machines.all))
    return leader, second, third


async def read(machine: Machine) -> int:
    """Read the stream at a node. Returns the log time of the read."""
    group = machine.node.group
    stream = await machine.node.reads.stream(key("a"))
    assert stream is not None
    group.writes.touches.note(key("a"), stream.stream_id)
    return group.writes.touches.latest_ms(key("a"), stream.stream_id)


async def renewed(machine: Machine, read_ms: int) -> None:
    """Wait until the node has applied a `Touch` of that read or a later one."""
    stream = await machine.node.reads.stream(key("a"))
    assert stream is not None
    await wait_until(lambda: stream.touched_ms >= read_ms)


def test_a_read_renews_a_window_though_no_leader_is_known_for_long(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        _, second, third = await begin(machines)
        machines.network.cut(
            [(one.node_id, other.node_id) for one in machines.all for other in machines.all]
        )
        read_ms = await read(second)
        # Longer than a write waits for a leader.
        await trio.sleep(30)
        machines.heal()
        await renewed(third, read_ms)

    play(scenario)


def test_a_read_renews_a_window_though_the_leader_is_handing_over(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await begin(machines)
        await second.kill()
        leader.node.group.view.transfer(second.node_id)
        read_ms = await read(leader)
        await wait_until(lambda: not leader.node.group.view.transferring)
        assert leader.leads
        await renewed(leader, read_ms)

    play(scenario)


@pytest.mark.long
def test_a_read_renews_a_window_though_the_nodes_clock_is_an_hour_ahead(play: Play) -> None:
    """The time of such a read would be one at which the stream has expired long ago."""

    async def scenario(machines: Machines) -> None:
        leader, second, third = await all_ready(machines)
        second.ahead_ms = 3_600_000
        await leader.node.group.writes.propose(create("a", ttl_ms=60_000))
        await wait_until(
            lambda: second.node.group.view.applied_index == leader.node.group.view.applied_index
        )
        for _ in range(30):
            await read(second)
            await trio.sleep(5)
        for machine in (leader, third):
            assert await machine.node.reads.stream(key("a")) is not None
        await trio.sleep(90)
        assert await leader.node.reads.stream(key("a")) is None, "it still ends by itself"

    play(scenario)


def test_an_answer_that_cannot_be_decoded_leaves_the_outcome_unknown(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, _ = await begin(machines)

        async def as_another_release(node_id: int, payload: bytes) -> bytes:
            return msgspec.msgpack.encode([[["heard-of-nowhere"]]])

        leader.node.group.admission.propose_package = as_another_release  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await second.node.group.writes.propose(append("a", b"x"))
        del leader.node.group.admission.propose_package
        await second.node.group.writes.propose(append("a", b"y"))

    play(scenario)


def test_a_leader_whose_hot_tier_is_full_refuses_bytes_from_a_node_without_sessions(
    play: Play,
) -> None:
    async def scenario(machines: Machines) -> None:
        leader, _, _ = await begin(machines)
        leader.node.group.admission.hot_limit_bytes = -1
        wanted = [Proposal([append("a", b"x")], 1, 0.0), Proposal([Delete(key("a"))], 0, 0.0)]
        answer = await leader.node.group.admission.propose_forwarded(encode_proposals(wanted))
        refused, deleted = decode_answers(answer)
        with pytest.raises(Unavailable, match="the hot tier is full"):
            outcome_in(refused)
        assert outcome_in(deleted).result is Result.DELETED

    play(scenario)


@pytest.mark.long
def test_the_largest_allowed_body_reaches_the_leader(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 65 * 1024 * 1024
    monkeypatch.setattr(Machine, "server", ServerConfig(max_body_bytes=size))

    async def scenario(machines: Machines) -> None:
        _, second, _ = await begin(machines)
        result = await append_to(second.node, "a", bytes(size))
        assert result.result is Result.APPENDED

    play(scenario)
