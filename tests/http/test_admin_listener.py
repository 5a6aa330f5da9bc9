"""Operations at a listener of their own: the data port serves none of them then, and does not say
which ones there are."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import trustme

from streamd.http.router import find
from streamd.http.routes import OPERATIONS
from tests.client.running import Shell
from tests.http.authorized import ROOT, example
from tests.http.pki import make_pki
from tests.support.client_certificates import issue
from tests.support.long import first_quick
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
WITH_ROOT = {"Authorization": f"Bearer {ROOT}"}
STREAM = "/v1/stream/agents/one"
# Bodies that change nothing; the others are empty objects.
BODIES: Mapping[str, Any] = {"/cluster/transfer": {"node_id": "no"}}
ASKED = [(one.method, example(one.path.template)) for one in OPERATIONS if one.method != "HEAD"]
FOR_CLIENTS = [path for _, path in ASKED if find(path.encode()).resource.is_for_clients]
FOR_OPERATORS = [asked for asked in ASKED if asked[1] not in FOR_CLIENTS]
PATIENCE_S = 20.0


class Ports(NamedTuple):
    """A node whose operations have a listener of their own, and a client of both."""

    data: str
    admin: str
    client: httpx.Client

    def ask(self, url: str, method: str, path: str, **headers: str) -> httpx.Response:
        sent = {**JSON, **headers}
        body = json.dumps(BODIES.get(path, {})) if method in ("POST", "PUT") else None
        return self.client.request(method, url + path, headers=sent, content=body)


def admin(**settings: str) -> tuple[str, dict[str, str]]:
    """An address for operations, and an environment with it."""
    address = f"127.0.0.1:{unused_port()}"
    named = {f"STREAMD_{name}": value for name, value in settings.items()}
    return address, {"STREAMD_ADMIN_LISTEN": address, **named}


@pytest.fixture(
    scope="module",
    params=[
        "HTTP/1.1",
        pytest.param("HTTP/2", marks=pytest.mark.long),
        pytest.param("workers", marks=pytest.mark.long),
        "HTTP/1.1, no tokens",
        pytest.param("workers, no tokens", marks=pytest.mark.long),
    ],
)
def ports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ports]:
    stack, _, openness = request.param.partition(", ")
    address, environment = admin(
        AUTH_MODE="none" if openness else "required",
        ROOT_TOKEN=ROOT,
        SERVER_WORKERS="2" if stack == "workers" else "1",
        SERVER_HTTP="hypercorn" if stack == "HTTP/2" else "front-door",
        CLUSTER_NAME="alone",
        CLUSTER_LISTEN=f"127.0.0.1:{unused_port()}",
    )
    is_2 = stack == "HTTP/2"
    data = tmp_path_factory.mktemp("ports") / "data"
    with (
        ServerProcess(data, environment=environment) as server,
        checked_client(http1=not is_2, http2=is_2, timeout=PATIENCE_S) as client,
    ):
        yield Ports(server.url, f"http://{address}", client)


def like(answer: httpx.Response) -> tuple[int, dict[str, str], bytes]:
    """What a client sees of an answer, but for the time. A refusal ends the connection if the
    request's body comes after its head."""
    timely = ("date", "connection")
    headers = {name: value for name, value in answer.headers.items() if name not in timely}
    return answer.status_code, headers, answer.content


def test_there_are_operations_of_both_kinds() -> None:
    assert len(FOR_OPERATORS) > 15
    assert sorted(FOR_CLIENTS) == [
        "/auth/sign", "/healthz", "/openapi.json", "/readyz/cluster", "/readyz/local"
    ]  # fmt: skip


def test_the_admin_listener_serves_all_operations(ports: Ports) -> None:
    for method, path in FOR_OPERATORS:
        answer = ports.ask(ports.admin, method, path, **WITH_ROOT)
        assert answer.status_code not in (401, 403, 405, 421, 500), (path, answer.text)
        if answer.status_code == 404:
            assert answer.json()["error"]["code"] != "NOT_FOUND", path


@pytest.mark.parametrize("method", first_quick(["GET", "POST", "HEAD", "PUT", "DELETE"], 2))
def test_at_the_data_port_an_operation_is_like_a_path_that_does_not_exist(
    ports: Ports, method: str
) -> None:
    for _, path in FOR_OPERATORS:
        root = path.split("/")[1]
        nowhere = f"/{root}/nowhere" if root != "metrics" else "/metrics/nowhere"
        for headers in (WITH_ROOT, {**WITH_ROOT, "Origin": "http://evil.example"}):
            found = ports.ask(ports.data, method, path, **headers)
            assert like(found) == like(ports.ask(ports.data, method, nowhere, **headers)), path
            assert found.status_code == (403 if "Origin" in headers else 404), path


def test_the_data_port_tells_a_stranger_nothing_of_operations(ports: Ports) -> None:
    if ports.ask(ports.admin, "GET", "/cluster/status").status_code == 200:
        return  # Nobody is a stranger there.
    for method, path in FOR_OPERATORS:
        for headers in ({}, {"Authorization": "Bearer sd_0123456789abcdef_" + "a" * 32}):
            found = ports.ask(ports.data, method, path, **headers)
            nowhere = ports.ask(ports.data, method, "/cluster/nowhere", **headers)
            assert like(found) == like(nowhere), path
            assert found.status_code == 401


def test_probes_are_answered_at_both(ports: Ports) -> None:
    for path in set(FOR_CLIENTS) - {"/auth/sign"}:
        answers = [ports.ask(url, "GET", path) for url in (ports.data, ports.admin)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].content == answers[1].content


def test_the_admin_listener_serves_no_streams(ports: Ports) -> None:
    ports.client.put(ports.data + STREAM, headers={**TEXT, **WITH_ROOT})
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        for path in (STREAM, "/agents", "/agents/streams", "/agents/one/append-batch", "/"):
            answer = ports.ask(ports.admin, method, path, **WITH_ROOT)
            assert answer.status_code == 404, (method, path)
    assert ports.client.get(ports.data + STREAM, headers=WITH_ROOT).status_code == 200


def test_a_page_may_not_use_the_admin_listener(ports: Ports) -> None:
    for headers, code in (
        ({"Origin": "http://evil.example"}, "ORIGIN_NOT_ALLOWED"),
        ({"Host": "evil.example"}, "HOST_NOT_ALLOWED"),
    ):
        for path in ("/cluster/status", STREAM):
            refused = ports.ask(ports.admin, "GET", path, **WITH_ROOT, **headers)
            assert refused.json()["error"]["code"] == code
    answer = ports.ask(ports.admin, "POST", "/cluster/snapshot", **{**WITH_ROOT, **TEXT})
    assert answer.status_code == 415


def test_options_tells_methods_where_an_operation_is_served(ports: Ports) -> None:
    assert "GET" in ports.ask(ports.admin, "OPTIONS", "/cluster/status").headers["allow"]
    assert ports.ask(ports.data, "OPTIONS", "/cluster/status").status_code == 404
    assert ports.ask(ports.admin, "OPTIONS", STREAM).status_code == 404


def test_metrics_count_the_connections_of_both(ports: Ports) -> None:
    ports.ask(ports.data, "GET", "/healthz")
    told = ports.ask(ports.admin, "GET", "/metrics", **WITH_ROOT).text
    found = dict(re.findall(r"^streamd_(http|admin)_connections (\S+)$", told, re.MULTILINE))
    assert found.keys() == {"http", "admin"}
    assert float(found["admin"]) >= 1


# -- the connections of clients and operators ----------------------------------------------------


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S, (source, 0))


def told(connection: socket.socket, path: str = "/healthz") -> bytes:
    """The head of the answer; of a refusal that comes unasked, too."""
    connection.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
    return connection.recv(65536)


def take_all(port: int, stack: ExitStack) -> None:
    """Open connections until all further ones are refused."""
    refused = 0
    # One address may not have all of them. With workers each takes and refuses its own.
    sources = cycle(f"127.0.0.{number}" for number in range(2, 10))
    while refused < 32:
        answer = told(stack.enter_context(connect(port, next(sources))))
        is_refusal = b"TOO_MANY_CONNECTIONS" in answer
        assert is_refusal or answer.startswith(b"HTTP/1.1 200 ")
        refused = refused + 1 if is_refusal else 0


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_operators_are_answered_when_clients_have_all_connections(
    tmp_path: Path, workers: str
) -> None:
    address, environment = admin(SERVER_MAX_CONNECTIONS="8", SERVER_WORKERS=workers)
    with ServerProcess(tmp_path / "data", environment=environment) as server, ExitStack() as stack:
        take_all(server.port, stack)
        for path in ("/healthz", "/metrics", "/cluster/status"):
            with connect(int(address.split(":")[1])) as operator:
                assert told(operator, path).startswith(b"HTTP/1.1 200 ")


def test_clients_are_answered_when_operators_have_all_connections(tmp_path: Path) -> None:
    address, environment = admin()
    with ServerProcess(tmp_path / "data", environment=environment) as server, ExitStack() as stack:
        for number in range(80):
            source = f"127.0.0.{2 + number % 8}"
            told(stack.enter_context(connect(int(address.split(":")[1]), source)))
        assert told(stack.enter_context(connect(server.port))).startswith(b"HTTP/1.1 200 ")


# -- start and end -------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_operators_are_answered_until_clients_are_drained(tmp_path: Path, workers: str) -> None:
    address, environment = admin(SERVER_DRAIN_TIMEOUT_MS="20000", SERVER_WORKERS=workers)
    port = int(address.split(":")[1])
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        with connect(server.port) as writer:
            # The answer 100 shows that the head has arrived. An answer to another connection does
            # not: another worker may give it.
            head = b"PUT /v1/stream/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
            writer.sendall(head + b"Expect: 100-continue\r\n\r\n")
            assert writer.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.sendall(b"sl")
            assert server.process is not None
            server.signal(signal.SIGTERM)
            server.wait_refusing()
            with connect(port) as operator:
                assert told(operator, "/cluster/status").startswith(b"HTTP/1.1 200 ")
            writer.sendall(b"ow")
            assert writer.recv(65536).startswith(b"HTTP/1.1 201 ")
        assert server.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            connect(port)
        server.start()
        server.wait_ready()
        with connect(port) as operator:
            assert told(operator, "/cluster/status").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_start_names_both_addresses(tmp_path: Path, workers: int) -> None:
    address, environment = admin(SERVER_WORKERS=str(workers))
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        while (
            workers > 1 and "streamd_workers 2.0" not in httpx.get(f"http://{address}/metrics").text
        ):
            time.sleep(0.02)
        assert server.stop() == 0
    several = f" with {workers} workers" if workers > 1 else ""
    line = next(line for line in server.output.splitlines() if line.startswith("streamd "))
    assert f" serves {server.url} from {tmp_path / 'data'}{several}, and operations at" in line
    assert line.endswith(f" http://{address}")


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    address, environment = admin()
    port = int(address.split(":")[1])
    with socket.create_server(("127.0.0.1", port)):
        failed = ServerProcess(tmp_path / "data", environment=environment)
        failed.start()
        assert failed.wait() == 2
    reason = "Address already in use"
    assert f"admin.listen: cannot listen on {address}: " in failed.output
    assert reason in failed.output
    flags = ["--admin-listen", f"127.0.0.1:{failed.port}"]
    both = ServerProcess(tmp_path / "data", flags=flags, port=failed.port)
    both.start()
    assert both.wait() == 2
    assert "admin.listen: cannot listen on" in both.output


# -- TLS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_the_admin_listener_has_the_tls_of_the_data_port(tmp_path: Path, workers: str) -> None:
    pki = make_pki(tmp_path)
    address, environment = admin(
        SERVER_WORKERS=workers,
        SERVER_TLS_CERT=str(pki.certificate),
        SERVER_TLS_KEY=str(pki.key),
    )
    with ServerProcess(tmp_path / "data", environment=environment):
        url = f"https://{address}/cluster/status"
        with httpx.Client(verify=pki.client) as client:
            assert client.get(url).status_code == 200
        renewed = make_pki(tmp_path)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                assert httpx.get(url, verify=renewed.client).status_code == 200
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline, "the renewed certificate is never used"
                time.sleep(0.1)


def test_the_admin_listener_may_be_plain_beside_tls(tmp_path: Path) -> None:
    pki = make_pki(tmp_path)
    address, environment = admin(
        ADMIN_TLS="false", SERVER_TLS_CERT=str(pki.certificate), SERVER_TLS_KEY=str(pki.key)
    )
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        assert httpx.get(f"http://{address}/cluster/status").status_code == 200
        with httpx.Client(verify=pki.client) as client:
            assert client.get(f"{server.url}/healthz").status_code == 200


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_an_operators_certificate_is_a_credential_at_the_admin_listener(
    tmp_path: Path, workers: str
) -> None:
    pki, authority = make_pki(tmp_path), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "clients.pem"))
    config = tmp_path / "streamd.toml"
    config.write_text(
        '[[auth.certificates]]\ncommon_name = "ops"\nscopes = ["operate:cluster/status"]\n'
    )
    address, environment = admin(
        AUTH_MODE="required",
        SERVER_WORKERS=workers,
        SERVER_TLS_CERT=str(pki.certificate),
        SERVER_TLS_KEY=str(pki.key),
        SERVER_TLS_CLIENT_CA=str(tmp_path / "clients.pem"),
    )
    operator = issue(authority, tmp_path, common_names=["ops"]).client(pki.authority)
    with ServerProcess(
        tmp_path / "data", flags=["--config", str(config)], environment=environment
    ) as server:
        for verify, path, status in (
            (operator, "/cluster/status", 200),
            (operator, "/metrics", 403),
            (pki.client, "/cluster/status", 401),
        ):
            with httpx.Client(verify=verify, timeout=PATIENCE_S) as client:
                assert client.get(f"https://{address}{path}").status_code == status
        with httpx.Client(verify=operator, timeout=PATIENCE_S) as client:
            assert client.get(f"{server.url}/cluster/status").status_code == 404


# -- the command line ----------------------------------------------------------------------------


@pytest.mark.long
def test_commands_of_operators_take_the_admin_address(tmp_path: Path) -> None:
    address, environment = admin(ROOT_TOKEN=ROOT, COLD_BACKEND="fs")
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        streamd = Shell(f"http://{address}")
        streamd.environment["STREAMD_TOKEN"] = ROOT
        assert b"leader 1" in streamd("cluster", "status")
        assert json.loads(streamd("cold", "flush", "--json"))["hot_bytes"] == 0
        assert streamd("token", "create", "--name", "a", "--scope", "read:*").startswith(b"sd_")
        streamd("cluster", "wait-ready")
        streamd.environment["STREAMD_URL"] = server.url
        for words in ("cluster status", "cold status", "token list", "limits list"):
            sentence = streamd.fails(1, *words.split())
            assert "404 NOT_FOUND" in sentence
            assert "admin.listen" in sentence
            assert "--url" in sentence
        streamd("cluster", "wait-ready")


def test_other_machines_reach_an_admin_listener_only_if_a_mode_is_written_down(
    tmp_path: Path,
) -> None:
    flags = ["--admin-listen", f"0.0.0.0:{unused_port()}"]
    refused = ServerProcess(tmp_path / "data", flags=flags)
    refused.start()
    assert refused.wait() == 2
    assert "admin.listen: " in refused.output
    assert 'auth.mode = "required"' in refused.output
    with ServerProcess(tmp_path / "data", flags=[*flags, "--auth-mode", "none"]) as server:
        assert server.stop() == 0
    assert "anyone who reaches the port may operate the node" in server.output
