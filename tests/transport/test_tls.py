"""Mutual TLS: both sides show a certificate of the cluster's authority, or no message is sent."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trio
import trustme
from structlog.testing import capture_logs

from streamd.transport import TlsContexts, ssl_contexts
from tests.transport.peers import GROUP, QUICK, Node, append, running, stranger, wait_until


class Authority:
    """A certificate authority, and the files that a node is configured with."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()
        directory.mkdir()
        self.trusted = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.trusted)

    def contexts(self, name: str = "127.0.0.1", trusted: Path | None = None) -> TlsContexts:
        issued = self._ca.issue_cert(name)
        cert, key = self._directory / "cert.pem", self._directory / "key.pem"
        for place, pem in enumerate(issued.cert_chain_pems):
            pem.write_to_path(cert, append=place > 0)
        issued.private_key_pem.write_to_path(key)
        return ssl_contexts(cert, key, trusted or self.trusted)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "own")


@pytest.fixture
def foreign(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "foreign")


async def test_nodes_of_one_authority_speak(authority: Authority) -> None:
    one, two = Node(1, tls=authority.contexts()), Node(2, tls=authority.contexts())
    async with running(one, two):
        one.transport.send(2, GROUP, [append(1, 3_000_000)])
        await wait_until(lambda: two.messages == [append(1, 3_000_000)])
        assert await two.ask(1, bytes(3_000_000)) == b"2/7/" + bytes(3_000_000)


async def test_a_node_reconnects_over_tls(authority: Authority) -> None:
    one = Node(1, tls=authority.contexts(), limits=QUICK)
    async with running(one, mesh=False):
        two = Node(2, tls=authority.contexts())
        async with running(two, mesh=False):
            address = two.address
            one.transport.set_peers({2: address})
            await one.wait_connected(2)
        await wait_until(lambda: not one.connected(2))
        async with running(Node(2, tls=authority.contexts(), listen=address), mesh=False):
            await one.wait_connected(2)


async def test_new_certificates_are_for_new_connections_and_end_none(
    authority: Authority, foreign: Authority
) -> None:
    one, two = Node(1, tls=authority.contexts()), Node(2, tls=authority.contexts())
    async with running(one, two):
        await one.wait_connected(2)
        await two.wait_connected(1)
        one.tls = foreign.contexts()
        three = Node(3, tls=foreign.contexts())
        with capture_logs() as logs:
            async with running(three, mesh=False):
                three.transport.set_peers({1: one.address})
                await three.wait_connected(1)
            assert await one.ask(2, b"still") == b"1/7/still"
        assert [entry for entry in logs if "ended" in entry["event"] and entry["node_id"] < 3] == []


async def test_a_node_of_another_authority_is_refused(
    authority: Authority, foreign: Authority
) -> None:
    """It is refused although it trusts our authority: its own certificate is not of ours."""
    one = Node(1, tls=authority.contexts())
    two = Node(2, tls=foreign.contexts(trusted=authority.trusted), limits=QUICK)
    async with running(one, two, mesh=False):
        with capture_logs() as logs:
            two.transport.set_peers({1: one.address})
            await wait_until(lambda: "its log says why" in two.last_error(1))
        reasons = [entry["reason"] for entry in logs if "handshake" in entry["event"]]
        assert ["its certificate was refused" in reason for reason in reasons][:1] == [True]
        assert one.met == []


async def test_a_node_does_not_speak_to_one_of_another_authority(
    authority: Authority, foreign: Authority
) -> None:
    one = Node(1, tls=authority.contexts(), limits=QUICK)
    two = Node(2, tls=foreign.contexts(trusted=authority.trusted))
    async with running(one, two, mesh=False):
        one.transport.set_peers({2: two.address})
        await wait_until(lambda: "its certificate was refused" in one.last_error(2))
        assert two.met == []


async def test_a_certificate_must_be_for_the_address_that_was_dialled(authority: Authority) -> None:
    one = Node(1, tls=authority.contexts(), limits=QUICK)
    two = Node(2, tls=authority.contexts("elsewhere.example"))
    async with running(one, two, mesh=False):
        one.transport.set_peers({2: two.address})
        await wait_until(lambda: "mismatch" in one.last_error(2))


async def test_a_node_without_tls_connects_in_neither_direction(authority: Authority) -> None:
    one, two = Node(1, tls=authority.contexts(), limits=QUICK), Node(2, limits=QUICK)
    async with running(one, two, mesh=False):
        one.transport.set_peers({2: two.address})
        two.transport.set_peers({1: one.address})
        await wait_until(lambda: one.last_error(2) != "" != two.last_error(1))
        assert one.met == two.met == []


async def test_a_tls_handshake_that_never_ends_is_not_waited_for(authority: Authority) -> None:
    node = Node(1, tls=authority.contexts(), limits=QUICK)
    async with running(node), stranger(node, welcome=False) as other:
        await other.stream.send_all(b"\x16\x03\x01")
        assert await other.is_shut_out()


async def test_a_client_without_a_certificate_is_refused(authority: Authority) -> None:
    node = Node(1, tls=authority.contexts())
    bare = ssl.create_default_context(cafile=str(authority.trusted))
    async with running(node):
        host, port = node.address.rsplit(":", 1)
        plain = await trio.open_tcp_stream(host, int(port))
        async with plain:
            secured = trio.SSLStream(plain, bare, server_hostname=host)
            await secured.do_handshake()
            with pytest.raises(trio.BrokenResourceError):
                await secured.receive_some()
        assert node.met == []


def test_files_that_hold_no_certificate_are_an_error(tmp_path: Path, authority: Authority) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    with pytest.raises(OSError):  # noqa: PT011 - of ssl's kind
        ssl_contexts(rubbish, rubbish, authority.trusted)
    with pytest.raises(FileNotFoundError):
        ssl_contexts(tmp_path / "none", tmp_path / "none", authority.trusted)
