"""Which nodes may speak with each other: every refusal has a name, and advises what to do."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from streamd import __version__
from streamd.transport import Hello, Limits, Refusal, RefusalCode
from streamd.transport.errors import ConnectionEnded
from streamd.transport.hello import encode_hello, parse_hello, parse_refusal
from streamd.transport.sessions import Handshakes
from streamd.transport.wire import FrameKind
from tests.transport.peers import (
    GROUP,
    PATIENCE_S,
    QUICK,
    Node,
    Stranger,
    heartbeat,
    impostor,
    running,
    stranger,
    wait_until,
)


async def _refusal(node: Node, **changes: object) -> Refusal:
    async with stranger(node, welcome=False) as other:
        kind, payload = await other.introduce(node, **changes)
        assert kind == FrameKind.REFUSED
        assert await other.is_shut_out()
    return parse_refusal(payload)


@pytest.mark.parametrize(
    ("code", "changes", "hint"),
    [
        (RefusalCode.PROTOCOL_VERSION, {"protocol_version": 2}, "same release"),
        (RefusalCode.CLUSTER_NAME, {"cluster_name": "other"}, "cluster.name"),
        (RefusalCode.CLUSTER_ID, {"cluster_id": "other"}, "data directory"),
        (RefusalCode.NODE_ID_IN_USE, {"node_id": 1}, "an id that no node has had"),
    ],
)
async def test_a_node_that_does_not_belong_is_refused_by_name(
    code: RefusalCode, changes: dict[str, object], hint: str
) -> None:
    node = Node(1, cluster_id="abc")
    async with running(node):
        refusal = await _refusal(node, **changes)
    assert refusal.code == code
    assert hint in str(refusal)
    assert node.met == []


async def test_the_handler_can_refuse_a_peer() -> None:
    node = Node(1)

    def check(peer: Hello) -> None:
        raise Refusal(RefusalCode.NOT_EXPECTED, "add the node first")

    node.checks = check
    async with running(node):
        refusal = await _refusal(node)
    assert (refusal.code, str(refusal)) == ("NOT_EXPECTED", "NOT_EXPECTED: add the node first")
    assert node.met == []


async def test_a_long_refusal_reaches_the_peer_all_the_same() -> None:
    node = Node(1, cluster_name="n" * 3000)
    async with running(node):
        refusal = await _refusal(node, cluster_name="other")
    assert refusal.code == RefusalCode.CLUSTER_NAME


@pytest.mark.parametrize("own", ["", "abc"])
async def test_a_node_that_is_not_a_member_yet_is_accepted(own: str) -> None:
    node = Node(1, cluster_id=own)
    async with running(node), stranger(node, welcome=False) as other:
        kind, payload = await other.introduce(node, cluster_id="" if own else "abc")
    assert kind == FrameKind.WELCOME
    assert parse_hello(payload).cluster_id == own


async def test_a_node_builds_its_hello_for_each_handshake() -> None:
    node = Node(1)
    async with running(node):
        async with stranger(node):
            pass
        node.cluster_id = "joined"
        assert (await _refusal(node, cluster_id="other")).code == RefusalCode.CLUSTER_ID


async def test_a_later_version_may_say_more_about_itself() -> None:
    hello = Node(1).hello()
    fields = encode_hello(hello)
    assert fields[0] == 0x9B, "an array of eleven"
    assert parse_hello(b"\x9c" + fields[1:] + b"\xa4more") == hello


# -- one id, one node -----------------------------------------------------------------------------


async def test_a_second_node_with_a_connected_nodes_id_is_refused() -> None:
    node = Node(1)
    async with running(node), stranger(node) as first:
        refusal = await _refusal(node, peer_address="elsewhere:9")
        assert refusal.code == RefusalCode.NODE_ID_IN_USE
        assert "stranger:9" in str(refusal)
        await first.send(FrameKind.PING)
        assert await first.wire.read_packet() == (FrameKind.PONG, __version__.encode())


async def test_a_node_that_has_moved_is_accepted_once_its_old_connection_has_closed() -> None:
    node = Node(1, limits=QUICK)
    async with running(node):
        async with stranger(node):
            pass
        kind = FrameKind.REFUSED
        with trio.fail_after(PATIENCE_S):
            while kind == FrameKind.REFUSED:
                async with stranger(node, welcome=False) as moved:
                    answer, _ = await moved.introduce(node, peer_address="elsewhere:9")
                    kind = FrameKind(answer)
        assert kind == FrameKind.WELCOME


@pytest.mark.parametrize("cluster_id", ["", "joined"])
async def test_a_restarted_node_takes_the_place_of_its_old_connection(cluster_id: str) -> None:
    node = Node(1)
    async with running(node), stranger(node) as old, stranger(node, welcome=False) as new:
        kind, _ = await new.introduce(node, cluster_id=cluster_id)
        assert kind == FrameKind.WELCOME
        assert await old.is_shut_out()
        await new.send(FrameKind.PING)
        assert await new.wire.read_packet() == (FrameKind.PONG, __version__.encode())


# -- the dialling side ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda two: setattr(two, "version", 2), RefusalCode.PROTOCOL_VERSION),
        (lambda two: setattr(two, "cluster_name", "other"), RefusalCode.CLUSTER_NAME),
        (lambda two: setattr(two, "cluster_id", "other"), RefusalCode.CLUSTER_ID),
        (lambda two: setattr(two, "node_id", 1), RefusalCode.NODE_ID_IN_USE),
    ],
)
async def test_a_refused_node_logs_why_once_and_keeps_trying(
    change: Callable[[Node], None], code: RefusalCode
) -> None:
    one, two = Node(1, cluster_id="abc", limits=QUICK), Node(2, cluster_id="abc")
    change(two)
    async with running(one, two, mesh=False):
        with capture_logs() as logs:
            one.transport.set_peers({2: two.address})
            attempts = one.hellos + 5
            await wait_until(lambda: one.hellos >= attempts)
        assert code in one.last_error(2)
        assert not one.connected(2)
        change_back(two)
        await one.wait_connected(2)
    told = [entry for entry in logs if entry["event"] == "no peer"]
    assert len(told) == 1
    assert code in told[0]["reason"]


def change_back(two: Node) -> None:
    two.version, two.cluster_name, two.cluster_id, two.node_id = 1, "test", "abc", 2


async def test_the_dialler_checks_the_peer_that_answers() -> None:
    one, two = Node(1, limits=QUICK), Node(2)

    def check(peer: Hello) -> None:
        raise Refusal(RefusalCode.NOT_EXPECTED, "not this one")

    one.checks = check
    async with running(one, two, mesh=False):
        one.transport.set_peers({2: two.address})
        await wait_until(lambda: "refused by this node" in one.last_error(2))
        one.transport.send(2, GROUP, [heartbeat(1)])
        assert one.met == []


async def test_a_peer_that_answers_with_another_clusters_id_is_refused() -> None:
    one = Node(1, cluster_id="abc", limits=QUICK)

    async def behave(caller: Stranger) -> None:
        await caller.wire.read_packet()
        hello = Node(2, cluster_id="other", address="two:2").hello()
        await caller.send(FrameKind.WELCOME, encode_hello(hello))
        await caller.is_shut_out()

    async with impostor(behave) as address, running(one, mesh=False):
        one.transport.set_peers({2: address})
        await wait_until(lambda: RefusalCode.CLUSTER_ID in one.last_error(2))


# -- limits ---------------------------------------------------------------------------------------


async def test_handshakes_at_once_are_limited() -> None:
    node = Node(1, limits=Limits(max_handshakes=2))
    shut_out: list[Stranger] = []

    async def watch(other: Stranger) -> None:
        if await other.is_shut_out():
            shut_out.append(other)

    async with running(node), AsyncExitStack() as opened:
        others = [await opened.enter_async_context(stranger(node, welcome=False)) for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for other in others:
                nursery.start_soon(watch, other)
            await wait_until(lambda: bool(shut_out))
            nursery.cancel_scope.cancel()
        assert len(shut_out) == 1
        patient = next(other for other in others if other not in shut_out)
        kind, _ = await patient.introduce(node)
        assert kind == FrameKind.WELCOME


async def test_silent_connections_keep_no_member_and_no_newcomer_out() -> None:
    """From more addresses than share the places of strangers, and from the member's own."""
    patient = Limits(handshake_timeout_s=60.0)
    node, two = Node(1, limits=patient), Node(2, limits=QUICK)
    async with running(node, two, mesh=False), AsyncExitStack() as opened:
        node.transport.set_peers({2: two.address})
        await node.wait_connected(2)
        sources = [f"127.0.0.{number}" for number in range(1, 11)]
        for source in sources * 20:
            await opened.enter_async_context(stranger(node, welcome=False, source=source))
        two.transport.set_peers({1: node.address})
        await two.wait_connected(1)
        async with stranger(node, welcome=False, source="127.0.0.99") as newcomer:
            kind, _ = await newcomer.introduce(node)
            assert kind == FrameKind.WELCOME
        assert node.transport.refused_connections >= 200 - 64 - 16


async def test_a_member_that_is_named_by_a_host_name_has_places_at_its_addresses() -> None:
    """Without that it has ever dialled this node, and also when its name is lost later."""
    hosts = {"two.test": ["127.0.0.22"]}

    class Names(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host: Any, port: Any, *rest: Any, **more: Any) -> Any:
            name = host.decode() if isinstance(host, bytes) else host
            if name not in hosts:
                raise socket.gaierror(socket.EAI_NONAME, "unknown")
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (one, port)) for one in hosts[name]]

        async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
            raise NotImplementedError

    node = Node(1, limits=Limits(handshake_timeout_s=60.0, max_handshakes=2, backoff_max_s=0.05))
    async with running(node, mesh=False), AsyncExitStack() as opened:
        trio.socket.set_custom_hostname_resolver(Names())
        node.transport.set_peers({2: "two.test:9"})
        await wait_until(lambda: node.last_error(2) != "")
        member = await opened.enter_async_context(
            stranger(node, welcome=False, source="127.0.0.22")
        )
        for number in range(30, 40):
            source = f"127.0.0.{number}"
            await opened.enter_async_context(stranger(node, welcome=False, source=source))
        kind, _ = await member.introduce(node)
        assert kind == FrameKind.WELCOME
        hosts.clear()
        await wait_until(lambda: "unknown" in node.last_error(2))
        member = await opened.enter_async_context(
            stranger(node, welcome=False, source="127.0.0.22")
        )
        for number in range(30, 40):
            source = f"127.0.0.{number}"
            await opened.enter_async_context(stranger(node, welcome=False, source=source))
        await wait_until(lambda: node.transport.refused_connections >= 18)
        kind, _ = await member.introduce(node)
        assert kind == FrameKind.WELCOME


def _enter(handshakes: Handshakes, stack: ExitStack, *hosts: str | None) -> list[trio.CancelScope]:
    return [stack.enter_context(handshakes.one(host)) for host in hosts]


async def test_handshakes_are_counted_by_client_and_the_oldest_gives_way() -> None:
    limits = Limits(max_handshakes=6, max_handshakes_per_host=4)
    handshakes = Handshakes(limits, lambda client: client in ("10.0.0.1", "fd00000000000000"))
    with ExitStack() as stack:
        member = _enter(handshakes, stack, "10.0.0.1", "fd00::1")
        one = _enter(handshakes, stack, *(f"2001:db8::{number}" for number in range(8)))
        assert [scope.cancel_called for scope in one] == [True] * 4 + [False] * 4
        others = _enter(handshakes, stack, *(f"192.0.2.{number}" for number in range(8)))
        assert [scope.cancel_called for scope in one[4:] + others] == [True] * 6 + [False] * 6
        assert not any(scope.cancel_called for scope in member)
        more = _enter(handshakes, stack, *["10.0.0.1"] * 4)
        assert [scope.cancel_called for scope in member + more] == [True] + [False] * 5
        assert not any(scope.cancel_called for scope in others[2:])


async def test_sessions_are_limited_and_a_reconnect_does_not_add_one() -> None:
    node = Node(1, limits=Limits(max_sessions=1))
    async with running(node), stranger(node), stranger(node):
        refusal = await _refusal(node, node_id=10)
        assert refusal.code == RefusalCode.TOO_MANY_CONNECTIONS


async def test_strangers_do_not_take_the_places_of_peers() -> None:
    node, two = Node(1, limits=Limits(max_sessions=1, silence_timeout_s=60.0)), Node(2)
    async with running(node, two, mesh=False), stranger(node) as other:
        assert other
        node.transport.set_peers({2: two.address})
        two.transport.set_peers({1: node.address})
        await two.wait_connected(1)


async def test_a_requested_address_displaces_an_announced_one() -> None:
    node, two, three = Node(1, limits=Limits(max_routes=1)), Node(2), Node(3)
    async with running(node, two, three, mesh=False), stranger(node) as other:
        assert other
        node.transport.add_announced_route("stranger:9")
        node.transport.add_announced_route(two.address)
        node.transport.add_route(three.address)
        await node.wait_connected(3)
        assert not node.connected(2)


async def test_an_announced_address_is_dialled_while_its_announcer_is_connected() -> None:
    dialled = trio.Event()
    node, two = Node(1, limits=Limits(max_routes=1, backoff_max_s=0.01)), Node(2)

    async def hang_up(other: Stranger) -> None:
        nonlocal dialled
        dialled.set()

    async with running(node, two, mesh=False), impostor(hang_up) as address:
        async with stranger(node, welcome=False) as other:
            await other.introduce(node, peer_address=address)
            node.transport.add_announced_route(address)
            for _ in range(5):
                await dialled.wait()
                dialled = trio.Event()

        def is_reached() -> bool:
            node.transport.add_announced_route(two.address)
            return node.connected(2)

        await wait_until(is_reached)


async def test_routes_are_limited() -> None:
    node = Node(1, limits=Limits(max_routes=1))
    two, three = Node(2), Node(3)
    async with running(node, two, three, mesh=False):
        with capture_logs() as logs:
            node.transport.add_route(two.address)
            node.transport.add_route(three.address)
        assert [entry["address"] for entry in logs] == [three.address]
        await node.wait_connected(2)
        assert three.met == []


async def test_a_handler_that_raises_in_a_handshake_stops_the_transport() -> None:
    node = Node(1)

    def check(peer: Hello) -> None:
        raise RuntimeError("a bug")

    node.checks = check
    with pytest.raises(BaseExceptionGroup) as caught:
        await _run_and_meet(node)
    assert caught.value.subgroup(RuntimeError) is not None


async def _run_and_meet(node: Node) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(node.transport.run)
        async with stranger(node, welcome=False) as other:
            with suppress(ConnectionEnded):
                await other.introduce(node)
            await trio.sleep_forever()
