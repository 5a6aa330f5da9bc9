"""A peer proves its identity by its certificate's name, or by a secret."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import trustme

from streamd.transport import Credentials, RefusalCode, ssl_contexts
from streamd.transport.credentials import (
    ACCEPTOR,
    DEFAULT_TLS_NAME,
    DIALLER,
    FIRST,
    SECOND,
    expected_name,
    names_in,
)
from streamd.transport.errors import ConnectionEnded, Refusal
from streamd.transport.hello import encode_hello, parse_hello, parse_refusal
from streamd.transport.wire import FrameKind
from tests.transport.peers import (
    NO_CREDENTIALS,
    QUICK,
    Node,
    Stranger,
    impostor,
    running,
    stranger,
    wait_until,
)

SECRET = Credentials(b"s" * 32)
OTHER = Credentials(b"o" * 32)
OPTIONAL = Credentials(b"s" * 32, optional=True)


def _node(node_id: int, credentials: Credentials = SECRET) -> Node:
    return Node(node_id, limits=QUICK, credentials=credentials)


# -- a secret ---------------------------------------------------------------------------------


async def test_nodes_that_share_a_secret_speak() -> None:
    one, two = _node(1), _node(2)
    async with running(one, two):
        assert await two.ask(1, b"well?") == b"2/7/well?"


@pytest.mark.parametrize("other", [OTHER, NO_CREDENTIALS, OTHER._replace(optional=True)])
async def test_a_node_without_the_secret_is_refused_both_ways(other: Credentials) -> None:
    one, two = _node(1), _node(2, other)
    async with running(one, two, mesh=False):
        one.transport.set_peers({2: two.address})
        two.transport.set_peers({1: one.address})
        await wait_until(lambda: "secret" in one.last_error(2) and "secret" in two.last_error(1))
        assert one.met == []


async def test_a_cluster_takes_a_secret_one_node_after_another() -> None:
    """While the secret is optional, nodes with and without it speak with each other."""
    nodes = [_node(1, OPTIONAL), _node(2, NO_CREDENTIALS), _node(3)]
    async with running(nodes[0], nodes[1]):
        pass
    async with running(nodes[0], nodes[2]):
        pass


async def _introduce(node: Node, other: Stranger, nonce: bytes) -> tuple[bytes, bytes, bytes]:
    """Introduce itself as node 9 of an earlier release, where such a node is expected. Returns the
    node's hello and its proof."""
    node.transport.add_route("127.0.0.1:1")
    hello = msgspec.structs.replace(
        node.hello(), node_id=9, peer_address="stranger:9", instance=99, nonce=nonce
    )
    await other.send(FrameKind.HELLO, encode_hello(hello))
    kind, welcome = await other.wire.read_packet()
    assert kind == FrameKind.WELCOME
    kind, proof = await other.wire.read_packet()
    assert kind == FrameKind.PROOF
    return encode_hello(hello), welcome, proof


async def test_a_proof_opens_one_connection_and_no_other() -> None:
    node = _node(1)
    async with running(node):
        async with stranger(node, welcome=False) as other:
            hello, welcome, _ = await _introduce(node, other, b"n" * 32)
            proof = SECRET.proof(DIALLER, hello, welcome)
            await other.send(FrameKind.PROOF, proof)
            await wait_until(lambda: node.has_met(9))
        node.met.clear()
        async with stranger(node, welcome=False) as other:
            await _introduce(node, other, b"n" * 32)
            await other.send(FrameKind.PROOF, proof)
            kind, payload = await other.wire.read_packet()
            assert (kind, parse_refusal(payload).code) == (
                FrameKind.REFUSED,
                RefusalCode.NOT_PROVED,
            )
        assert node.met == []


async def test_a_nodes_own_proof_proves_nothing_to_it() -> None:
    node = _node(1)
    async with running(node), stranger(node, welcome=False) as other:
        _, _, proof = await _introduce(node, other, b"n" * 32)
        await other.send(FrameKind.PROOF, proof)
        assert await other.is_shut_out()
        assert node.met == []


@pytest.mark.parametrize("nonce", [b"", b"short", b"n" * 33])
async def test_a_peer_without_a_proof_learns_that_one_is_required(nonce: bytes) -> None:
    node = _node(1)
    async with running(node), stranger(node, welcome=False) as other:
        kind, payload = await other.introduce(node, nonce=nonce)
        assert (kind, parse_refusal(payload).code) == (FrameKind.REFUSED, RefusalCode.NOT_PROVED)
        assert "cluster.secret_file" in parse_refusal(payload).message
        assert node.met == []


async def test_the_handler_hears_nothing_of_a_peer_before_its_proof() -> None:
    node, two = _node(1), _node(2)
    async with running(node, two), stranger(node, welcome=False) as other:
        await _introduce(node, other, b"n" * 32)
        await other.send(FrameKind.REQUEST, bytes(18))
        assert await other.is_shut_out()
        assert not node.has_met(9)
        assert await two.ask(1, b"well?") == b"2/7/well?"


async def test_a_dialler_sends_no_proof_to_a_peer_that_has_none() -> None:
    seen: list[int] = []

    async def behave(caller: Stranger) -> None:
        _, payload = await caller.wire.read_packet()
        answer = msgspec.structs.replace(
            parse_hello(payload), node_id=2, instance=5, nonce=b"m" * 32
        )
        await caller.send(FrameKind.WELCOME, encode_hello(answer))
        await caller.send(FrameKind.PROOF, bytes(32))
        if not await caller.is_shut_out():
            seen.append(1)

    node = _node(1)
    async with impostor(behave) as address, running(node, mesh=False):
        node.transport.set_peers({2: address})
        await wait_until(lambda: "another secret" in node.last_error(2))
        assert seen == []
        assert node.met == []


async def _tell(other: Stranger, node: Node, **changes: object) -> bytes:
    """Introduce itself as node 9, which proves itself first. Returns the frame that was sent."""
    hello = msgspec.structs.replace(
        node.hello(), node_id=9, peer_address="stranger:9", nonce=b"n" * 32, proves_first=True
    )
    sent = encode_hello(msgspec.structs.replace(hello, **changes))
    await other.send(FrameKind.HELLO, sent)
    return sent


TELLING: list[dict[str, object]] = [
    {},
    {"nonce": b""},
    {"proves_first": False},
    {"cluster_name": "other"},
    {"cluster_id": "other"},
    {"node_id": 1},
    {"node_id": 2, "peer_address": "elsewhere:2"},
    {"protocol_version": 7},
    {"proves_first": False, "cluster_name": "other"},
    {"cluster_name": "n" * 3000},
]


@pytest.mark.parametrize("changes", TELLING)
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.9"])
async def test_a_stranger_learns_nothing_before_its_proof(
    changes: dict[str, object], source: str
) -> None:
    """Also at the host of a member, once that is known to prove itself first."""
    names = {"cluster_name": "hush-name", "cluster_id": "hush-id"}
    one, two = (
        Node(i, limits=QUICK, credentials=SECRET, cluster_name="hush-name", cluster_id="hush-id")
        for i in (1, 2)
    )
    async with running(one, two):
        await wait_until(lambda: one.has_met(2) and two.has_met(1))
        async with stranger(one, welcome=False, source=source) as other:
            hello = await _tell(other, one, **changes)
            heard = []
            try:
                while True:
                    kind, payload = await other.wire.read_packet()
                    heard.append(payload)
                    if kind == FrameKind.CHALLENGE:
                        assert len(payload) == 32
                        await other.send(FrameKind.PROOF, OTHER.proof(FIRST, hello, payload))
            except ConnectionEnded:
                pass
        assert parse_refusal(heard.pop()).code == RefusalCode.NOT_PROVED
        assert len(heard) <= 1
        told = b"".join(heard)
        for secret in (*names.values(), one.address, two.address, "client:1"):
            assert secret.encode() not in told
        assert not one.has_met(9)


async def test_one_that_proves_itself_first_is_welcomed_and_proved_to() -> None:
    node = _node(1)
    async with running(node), stranger(node, welcome=False) as other:
        hello = await _tell(other, node)
        _, challenge = await other.wire.read_packet()
        await other.send(FrameKind.PROOF, SECRET.proof(FIRST, hello, challenge))
        kind, welcome = await other.wire.read_packet()
        assert kind == FrameKind.WELCOME
        kind, proof = await other.wire.read_packet()
        assert (kind, proof) == (FrameKind.PROOF, SECRET.proof(SECOND, hello, challenge + welcome))
        await wait_until(lambda: node.has_met(9))


async def test_a_refusal_names_its_reason_after_the_proof() -> None:
    node = _node(1)
    async with running(node), stranger(node, welcome=False) as other:
        hello = await _tell(other, node, cluster_name="other")
        _, challenge = await other.wire.read_packet()
        await other.send(FrameKind.PROOF, SECRET.proof(FIRST, hello, challenge))
        kind, payload = await other.wire.read_packet()
        assert kind == FrameKind.REFUSED
        assert parse_refusal(payload).code == RefusalCode.CLUSTER_NAME


@pytest.mark.parametrize("mine", [SECRET, OTHER])
async def test_a_node_speaks_with_one_of_an_earlier_release(mine: Credentials) -> None:
    """As that answers: WELCOME and its proof before the dialler's."""
    proved = []

    async def behave(caller: Stranger) -> None:
        _, hello = await caller.wire.read_packet()
        answer = msgspec.structs.replace(
            parse_hello(hello), node_id=2, instance=5, nonce=b"m" * 32, proves_first=False
        )
        welcome = encode_hello(answer)[:-1]
        welcome = bytes((welcome[0] - 1,)) + welcome[1:]  # It has ten fields.
        await caller.send(FrameKind.WELCOME, welcome)
        await caller.send(FrameKind.PROOF, mine.proof(ACCEPTOR, hello, welcome))
        _, proof = await caller.wire.read_packet()
        proved.append(proof == SECRET.proof(DIALLER, hello, welcome))
        await caller.is_shut_out()

    node = _node(1)
    async with impostor(behave) as address, running(node, mesh=False):
        node.transport.set_peers({2: address})
        if mine is SECRET:
            await node.wait_connected(2)
            assert proved == [True]
        else:
            await wait_until(lambda: "another secret" in node.last_error(2))
            assert proved == []


async def test_no_proof_goes_to_an_address_that_a_stranger_named() -> None:
    """While secrets are optional anybody may name an address of their own host."""
    first: list[bytes] = []

    async def behave(caller: Stranger) -> None:
        _, hello = await caller.wire.read_packet()
        assert not parse_hello(hello).proves_first
        await caller.send(FrameKind.CHALLENGE, b"c" * 32)
        first.extend([payload async for payload in _frames(caller)])
        first.append(b"ended")

    node = _node(1, OPTIONAL)
    async with impostor(behave) as address, running(node, mesh=False):
        async with stranger(node, welcome=False) as other:
            kind, _ = await other.introduce(node, peer_address=address, nonce=b"")
            assert kind == FrameKind.WELCOME
            node.transport.add_announced_route(address)
            await wait_until(lambda: bool(first))
        assert first == [b"ended"]


async def _frames(caller: Stranger) -> AsyncIterator[bytes]:
    with suppress(ConnectionEnded):
        while True:
            yield (await caller.wire.read_packet())[1]


# -- certificates -----------------------------------------------------------------------------


class Authority:
    """A certificate authority, and nodes with certificates of it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(directory / "ca.pem")

    def node(
        self, node_id: int, *names: str, template: str = DEFAULT_TLS_NAME, optional: bool = False
    ) -> Node:
        issued = self._ca.issue_cert("127.0.0.1", *names, common_name=None)
        cert, key = (self._directory / f"{part}-{node_id}.pem" for part in ("cert", "key"))
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        tls = ssl_contexts(cert, key, self._directory / "ca.pem")
        credentials = Credentials(None, template, optional)
        return Node(node_id, tls=tls, limits=QUICK, credentials=credentials)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_a_certificate_names_its_node(authority: Authority) -> None:
    one = authority.node(1, "node-1.test.streamd")
    two = authority.node(2, "NODE-2.test.streamd")
    async with running(one, two):
        assert await two.ask(1, b"well?") == b"2/7/well?"


@pytest.mark.parametrize(
    "names", [[], ["node-3.test.streamd"], ["node-2.other.streamd"], ["laptop.marketing.example"]]
)
async def test_another_certificate_of_the_authority_is_refused_both_ways(
    authority: Authority, names: list[str]
) -> None:
    one, two = authority.node(1, "node-1.test.streamd"), authority.node(2, *names)
    async with running(one, two, mesh=False):
        two.transport.set_peers({1: one.address})
        await wait_until(lambda: "node-2.test.streamd" in two.last_error(1))
        one.transport.set_peers({2: two.address})
        await wait_until(lambda: "node-2.test.streamd" in one.last_error(2))
        assert one.met == []


async def test_the_name_in_certificates_is_for_operators_to_choose(authority: Authority) -> None:
    template = "streamd-{id}.prod.example"
    one = authority.node(1, "streamd-1.prod.example", template=template)
    two = authority.node(2, "streamd-2.prod.example", template=template)
    async with running(one, two):
        pass


async def test_certificates_without_names_are_accepted_where_names_are_optional(
    authority: Authority,
) -> None:
    async with running(authority.node(1, optional=True), authority.node(2, optional=True)):
        pass


def test_a_name_may_be_a_dns_name_a_uri_or_the_common_name() -> None:
    certificate = {
        "subject": ((("organizationName", "o"),), (("commonName", "Node-1.c.streamd"),)),
        "subjectAltName": (("DNS", "host"), ("URI", "spiffe://c/1"), ("IP Address", "10.0.0.1")),
    }
    assert names_in(certificate) == {"host", "spiffe://c/1", "node-1.c.streamd"}
    assert names_in(None) == set()
    assert expected_name("spiffe://{cluster}/{id}", 1, "C") == "spiffe://c/1"


def test_a_node_sends_no_proof_unless_asked() -> None:
    peer = Node(2).hello()
    assert not NO_CREDENTIALS.asks_proof(peer)
    with pytest.raises(Refusal):
        SECRET.asks_proof(peer)
