"""Strangers and members that send everything that the types of the peer protocol allow, and more.

Three real nodes on a network in memory: no node stops, nothing is in the log that the API would
refuse, the memory that strangers can occupy is bounded, and the real members go on working. `make
fuzz` plays as many scenes as `FUZZ_EXAMPLES` says.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from streamd.cluster.request_kinds import RequestKind
from streamd.cluster.shipping import Begin, Finish, Take
from streamd.group.log_formats import LOG_FORMAT
from streamd.group.packages import SentPackage
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.raft.messages import AppendRequest, Entry, EntryKind, Message, VoteRequest
from streamd.streams import keys
from streamd.streams.checks import fault
from streamd.streams.codec import Batch, decode_batch
from streamd.streams.commands import Command, OpenSession, RaiseLevel, Result
from streamd.transport.errors import RequestRefused
from streamd.transport.hello import Hello, encode_hello
from streamd.transport.wire import (
    CONTINUED,
    FrameKind,
    Request,
    frame,
    messages_payload,
    request_payload,
)
from tests.hostile.values import hostile
from tests.sim.network import Port, address_of
from tests.sim.runtime import run_virtually
from tests.support.machines import Machine, Machines, all_ready, play
from tests.support.nodes import append_to, create, read_all
from tests.transport.peers import Stranger

pytestmark = pytest.mark.long

_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "6"))
_SCENE = 40
_STRANGER = 9
_GROUP_ID = 0
_OTHER_GROUP_ID = 7
_PATIENCE_S = 60

_packed = msgspec.msgpack.encode
_commands = hostile(list[Command]).map(lambda made: _packed([(one, -1) for one in made]))
_packages = hostile(SentPackage).map(_packed)

# -- the messages -------------------------------------------------------------------------------

_payloads = st.one_of(
    st.binary(max_size=20),
    hostile(Batch).map(_packed),
    st.just(_packed([1, [["unheard-of"]]])),
)
_entries = st.lists(
    st.builds(Entry, st.integers(1, 9), st.integers(1, 9), st.integers(0, 4), _payloads), max_size=3
)
_messages = hostile(Message, sender=st.just(_STRANGER), to=st.integers(1, 3), entries=_entries)
_hellos = hostile(
    Hello,
    protocol_version=st.just(1),
    cluster_name=st.sampled_from(["machines"] * 9 + ["other"]),
    cluster_id=st.just(""),
    node_id=st.sampled_from([_STRANGER] * 9 + [1, 2, 3, 2**63 - 1]),
    peer_address=st.sampled_from([address_of(node_id) for node_id in (1, 2, 3, 8, _STRANGER)]),
)
_requests = st.one_of(
    st.tuples(st.just(RequestKind.FORWARD), _commands),
    st.tuples(st.just(RequestKind.SNAPSHOT), hostile(Begin | Take | Finish).map(_packed)),
    st.tuples(
        st.just(RequestKind.ADMIN),
        st.sampled_from([b'{"type":"add","address":"node8:1"}', b'{"type":"remove","node_id":2}']),
    ),
    st.tuples(st.just(RequestKind.PACKAGE), _packages),
    st.tuples(
        st.just(RequestKind.OPERATE),
        st.sampled_from([b"flush", b"gc", b"scrub", b"status", b"cold", b"unheard-of", b"\xff"]),
    ),
    st.tuples(
        st.just(RequestKind.HOST),
        st.sampled_from([b'{"deed":"restart"}', b'{"deed":"exec"}', b'{"deed":"install"}', b"{"]),
    ),
    st.tuples(st.just(RequestKind.LOG_KEY), st.sampled_from([b"", bytes(32), b"short"])),
    st.tuples(st.integers(0, 11), st.binary(max_size=40)),
)


class _Play:
    """A hostile connection to one node, opened again whenever the node has closed it."""

    def __init__(self, machines: Machines, target: Machine) -> None:
        self._port = Port(machines.network, _STRANGER)
        self._target = target
        self._stranger: Stranger | None = None

    async def begin(self, hello: Hello) -> None:
        """Introduce itself; the node decides whether to accept it."""
        stream = await self._port.connect(address_of(self._target.node_id))
        self._stranger = Stranger(stream)
        await self.send(frame(FrameKind.HELLO, encode_hello(hello)))

    async def send(self, data: bytes) -> None:
        if self._stranger is None:
            assert self._target.node.cluster is not None
            own = self._target.node.cluster.hello()
            await self.begin(
                replace(own, node_id=_STRANGER, peer_address=address_of(_STRANGER), instance=1)
            )
        if self._stranger is None:
            return  # The node closed that connection as well.
        with trio.move_on_after(1), suppress(trio.BrokenResourceError):
            await self._stranger.stream.send_all(data)
            await trio.sleep(0.02)
            if not await self._is_over():
                return
        self._stranger = None

    async def _is_over(self) -> bool:
        """Whether the node has closed the connection; everything else it sends is discarded."""
        assert self._stranger is not None
        with trio.move_on_after(0.001):
            while await self._stranger.stream.receive_some(65536):
                pass
            return True
        return False


Action = Callable[[_Play, Machine, Machine], Awaitable[None]]


async def _introduce(hello: Hello, play: _Play, leader: Machine, member: Machine) -> None:
    await play.begin(hello)


async def _send(data: bytes, play: _Play, leader: Machine, member: Machine) -> None:
    await play.send(data)


async def _forward(payload: bytes, play: _Play, leader: Machine, member: Machine) -> None:
    """As a member whose software is broken."""
    assert member.node.cluster is not None
    with suppress(Unavailable, OutcomeUnknown):
        await member.node.cluster.forward(leader.node_id, payload)


async def _send_package(payload: bytes, play: _Play, leader: Machine, member: Machine) -> None:
    assert member.node.cluster is not None
    with suppress(Unavailable, OutcomeUnknown):
        await member.node.cluster.send_package(leader.node_id, payload)


def _request(kind: int, payload: bytes) -> bytes:
    return frame(FrameKind.REQUEST, request_payload(Request(_GROUP_ID, 1, kind, 1000, payload)))


_frames = st.one_of(
    st.lists(_messages.map(_packed), min_size=1, max_size=3).map(
        lambda encoded: frame(FrameKind.MESSAGES, messages_payload(_GROUP_ID, encoded))
    ),
    _requests.map(lambda asked: _request(*asked)),
    st.binary(max_size=30),
    st.builds(
        frame,
        st.sampled_from([*FrameKind, FrameKind.MESSAGES | CONTINUED]),
        st.one_of(st.binary(max_size=30), st.just(bytes(100_000))),
    ),
)
_actions: st.SearchStrategy[Action] = st.one_of(
    _frames.map(lambda data: partial(_send, data)),
    _frames.map(lambda data: partial(_send, data)),
    _hellos.map(lambda hello: partial(_introduce, hello)),
    _commands.map(lambda payload: partial(_forward, payload)),
    _packages.map(lambda payload: partial(_send_package, payload)),
)

# -- the checks -----------------------------------------------------------------------------------


async def _works(machine: Machine, content: bytes) -> None:
    """A member takes writes and answers reads."""
    with trio.fail_after(_PATIENCE_S):
        outcome = await append_to(machine.node, "kept", content)
        assert outcome.result is Result.APPENDED
        await machine.node.group.reads.catch_up()
        assert (await read_all(machine.node, "kept")).endswith(content)


def _look_for_faults(machine: Machine) -> None:
    """Nothing that the API would refuse is in the log or in the state."""
    log = machine.node.stores.log
    for entry in log.entries(log.first_index, log.last_index + 1, 1 << 30):
        if entry.kind == EntryKind.COMMANDS:
            for command in decode_batch(entry.payload).commands:
                # The leader's own: for a member that asks, and in a new cluster.
                own = isinstance(command, OpenSession) or command == RaiseLevel(LOG_FORMAT)
                assert own or fault(command) is None, command
    configuration = machine.node.group.view.configuration
    assert configuration.members() == {1, 2, 3}
    known = machine.node.group.state.streams
    assert all(keys.is_stream_key(key) for key in known._live)


def _look_for_hoards(machine: Machine) -> None:
    assert machine.node.cluster is not None
    transport = machine.node.cluster.transport
    assert len(transport._routes) <= 2
    assert transport._acceptor._unfinished.size <= 1 << 20


async def _scene(actions: list[Action], place: int, machines: Machines) -> None:
    leader, member, third = await all_ready(machines)
    await leader.node.group.writes.propose(create("kept"))
    term = leader.node.group.view.term
    target = (leader, member, third)[place]
    play = _Play(machines, target)
    for number, action in enumerate(actions):
        with trio.fail_after(_PATIENCE_S):
            await action(play, leader, member)
        if number % 10 == 0:
            await _works(member, b"%d." % number)
    for machine in (leader, member, third):
        assert machine.running is not None, "a node has died"
        await _works(machine, b"end %d." % machine.node_id)
        _look_for_faults(machine)
        _look_for_hoards(machine)
    assert leader.leads
    assert leader.node.group.view.term == term, "a stranger has had a new leader elected"


@settings(
    max_examples=_EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    print_blob=True,
)
@given(st.lists(_actions, min_size=_SCENE, max_size=_SCENE), st.integers(0, 2))
def test_nodes_survive_every_message(actions: list[Action], place: int) -> None:
    with TemporaryDirectory() as directory:
        scenario = partial(_scene, actions, place)
        run_virtually(1, partial(play, scenario, Path(directory)))


def test_entries_that_no_release_understands_are_not_stored() -> None:
    """From a real leader: the node keeps what it has, and reports why it does not continue."""

    async def scenario(machines: Machines) -> None:
        leader, member, _ = await all_ready(machines)
        group = leader.node.group
        last, term = group.view.last_index, group.view.term
        assert leader.node.cluster is not None
        for payload in (b"\xc1", _packed([1, [["unheard-of"]]])):
            entry = Entry(last + 1, term, EntryKind.COMMANDS, payload)
            request = AppendRequest(leader.node_id, member.node_id, term, last, term, last, [entry])
            leader.node.cluster.transport.send(member.node_id, _GROUP_ID, [request])
            await trio.sleep(1)
            assert member.running is not None
            assert member.node.group.view.last_index == last
        await leader.node.group.writes.propose(create("kept"))
        await _works(member, b"on.")

    with TemporaryDirectory() as directory:
        run_virtually(1, partial(play, scenario, Path(directory)))


def test_messages_for_another_group_reach_no_group() -> None:
    async def scenario(machines: Machines) -> None:
        leader, member, _ = await all_ready(machines)
        cluster, term = leader.node.cluster, member.node.group.view.term
        assert cluster is not None
        request = VoteRequest(leader.node_id, member.node_id, term + 9, 1 << 40, term + 9)
        cluster.transport.send(member.node_id, _OTHER_GROUP_ID, [request])
        while cluster.transport.peers()[member.node_id].connected:  # noqa: ASYNC110
            await trio.sleep(0.01)
        while not cluster.transport.peers()[member.node_id].connected:  # noqa: ASYNC110
            await trio.sleep(0.01)
        with pytest.raises(RequestRefused, match="unknown group 7"):
            await cluster.transport.request(
                member.node_id, _OTHER_GROUP_ID, RequestKind.FORWARD, b"", timeout_s=9
            )
        assert member.node.group.view.term < term + 9
        await leader.node.group.writes.propose(create("kept"))
        await _works(member, b"on.")

    with TemporaryDirectory() as directory:
        run_virtually(1, partial(play, scenario, Path(directory)))
