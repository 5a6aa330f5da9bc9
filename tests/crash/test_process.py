"""The server as a process: exclusive use of its data, and how it ends."""

from __future__ import annotations

import http.client
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess


def test_a_second_process_on_the_same_data_is_refused_by_name(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as first:
        second = ServerProcess(tmp_path / "data")
        second.start()
        assert second.wait() == 1
        assert first.process is not None
        assert "is in use by another streamd" in second.output
        assert str(first.process.pid) in second.output


def test_data_of_another_node_is_refused(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as first:
        assert first.stop() == 0
    other = ServerProcess(tmp_path / "data", flags=["--node-id", "2"])
    other.start()
    assert other.wait() == 1
    assert "belongs to node 1, not 2" in other.output


def test_an_address_in_use_is_refused_before_the_data_is_touched(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as first:
        second = ServerProcess(tmp_path / "other", port=first.port)
        second.start()
        assert second.wait() == 2
        assert "server.listen" in second.output
        assert not (tmp_path / "other").exists()


def test_one_line_says_what_listens_where_and_a_signal_ends_it_with_success(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with ServerProcess(tmp_path / "data") as server:
            server.signal(number)
            assert server.wait() == 0
        line = server.output.splitlines()[0]
        assert server.url in line
        assert str(tmp_path / "data") in line
        assert "node 1" in line


def test_a_drain_ends_live_readers_and_finishes_requests_under_way(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        writer = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        writer.request("PUT", "/v1/stream/drained", headers={"Content-Type": "text/plain"})
        writer.getresponse().read()
        reader = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        reader.request("GET", "/v1/stream/drained?offset=now&live=sse")
        events = reader.getresponse()
        assert events.readline() == b"event: control\n"
        with _half_sent_append(server.port) as append:
            server.signal(signal.SIGTERM)
            assert b"upToDate" in events.read(), "the reader's response ends whole"
            append.sendall(b"half")
            assert append.recv(1000).startswith(b"HTTP/1.1 204")
        assert server.wait() == 0


@pytest.mark.parametrize("has_listener", [pytest.param(False, marks=pytest.mark.long), True])
def test_clients_and_operators_cannot_take_the_descriptors_that_the_stores_need(
    tmp_path: Path, has_listener: bool
) -> None:
    few = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"]
    operators = unused_port()
    flags = ["--admin-listen", f"127.0.0.1:{operators}"] if has_listener else []
    with (
        ServerProcess(tmp_path / "data", wrapper=few, flags=flags) as server,
        ExitStack() as opened,
    ):
        writer = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        text = {"Content-Type": "text/plain"}
        writer.request("PUT", "/v1/stream/written", headers=text)
        writer.getresponse().read()
        for port in (operators, server.port) if has_listener else (server.port,):
            first = writer.sock
            for number in range(300):
                # One address may not have all connections.
                source = f"127.0.0.{2 + number % 2}", 0
                made = socket.create_connection(("127.0.0.1", port), 10, source)
                opened.enter_context(made)
                first = made if number == 0 else first
            assert first.recv(1000) == b"", "there were too many, and the oldest gave way"
        for _ in range(6):
            # More than the stores' buffers hold: each has to open files.
            writer.request("POST", "/v1/stream/written", b"x" * 2**20, headers=text)
            answer = writer.getresponse()
            answer.read()
            assert answer.status == 204


def test_a_second_signal_stops_the_server_at_once(tmp_path: Path) -> None:
    patience = {"STREAMD_SERVER_DRAIN_TIMEOUT_MS": "3600000"}
    with ServerProcess(tmp_path / "data", environment=patience) as server:
        writer = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        writer.request("PUT", "/v1/stream/drained", headers={"Content-Type": "text/plain"})
        writer.getresponse().read()
        with _half_sent_append(server.port):
            server.signal(signal.SIGTERM)
            server.wait_refusing()
            server.signal(signal.SIGTERM)
            assert server.wait() == 128 + signal.SIGTERM


def _half_sent_append(port: int) -> socket.socket:
    """A connection in the middle of sending an append of eight bytes."""
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(
        b"POST /v1/stream/drained HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        b"Content-Length: 8\r\nExpect: 100-continue\r\n\r\n"
    )
    assert client.recv(1000).startswith(b"HTTP/1.1 100")
    client.sendall(b"half")
    return client
