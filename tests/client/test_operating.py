"""`streamd cluster` and `streamd cold` reach a server as every other command does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from streamd.commands.operating import Operator
from streamd.commands.options import Server
from tests.client.running import Shell
from tests.support.breaking_off import BUSY, breaking_off
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess


def cold(path: Path) -> dict[str, str]:
    path.mkdir(mode=0o700)
    return {"STREAMD_COLD_BACKEND": "fs", "STREAMD_COLD_FS_PATH": str(path)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("server")
    with ServerProcess(directory / "data", environment=cold(directory / "cold")) as server:
        yield server


@pytest.mark.parametrize("words", ["cluster status --json", "cold status --json"])
def test_the_next_of_several_nodes_is_asked_when_one_is_down(
    server: ServerProcess, words: str
) -> None:
    streamd = Shell(f"http://127.0.0.1:{unused_port()},{server.url}")
    assert json.loads(streamd(*words.split()))["node_id"] == 1
    streamd("cluster", "wait-ready", "--timeout", "20")


def test_a_cold_command_goes_to_a_node_that_is_up(server: ServerProcess) -> None:
    streamd = Shell(f"http://127.0.0.1:{unused_port()},{server.url}")
    assert json.loads(streamd("cold", "flush", "--json"))["hot_bytes"] == 0
    assert b"the log begins at entry " in streamd("cluster", "snapshot")


def test_a_private_ca_is_trusted_for_operations_too(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca = str(tmp_path / "ca.pem")
    authority.cert_pem.write_to_path(ca)
    certificate = str(tmp_path / "server.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(certificate)
    environment = {
        **cold(tmp_path / "cold"),
        "STREAMD_SERVER_TLS_CERT": certificate,
        "STREAMD_SERVER_TLS_KEY": certificate,
    }
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        streamd = Shell(server.url)
        assert "CERTIFICATE_VERIFY_FAILED" in streamd.fails(3, "cluster", "status")
        assert b"leader 1" in streamd("cluster", "--cacert", ca, "status")
        streamd.environment["STREAMD_CACERT"] = ca
        assert json.loads(streamd("cold", "status", "--json"))["leads"]
        # A follower would ask the leader with the same trust; here one node is both.
        at_any = Operator(Server([server.url], ca, None, None, None))
        told = at_any.peek(f"127.0.0.1:{server.port}", "/cluster/status")
        assert told is not None
        assert told["leader_id"] == 1
        assert at_any.peek(f"127.0.0.1:{unused_port()}", "/cluster/status") is None


def test_a_port_that_no_address_has_is_a_usage_error() -> None:
    failed = Shell("http://host:99999").run("head", "x")
    assert (failed.returncode, b"Port out of range" in failed.stderr) == (2, True)


def test_a_url_without_a_scheme_is_a_usage_error_for_operations_too() -> None:
    for command in ("cluster", "cold"):
        failed = Shell("10.0.0.1:4437").run(command, "status")
        assert (failed.returncode, b"does not begin with http" in failed.stderr) == (2, True)


@pytest.mark.parametrize(("answer", "status"), [(b"", 3), (BUSY, 3)])
def test_a_membership_change_is_never_sent_twice(answer: bytes, status: int) -> None:
    """Sent again after it took effect, it would be refused, or transfer leadership once more."""
    with breaking_off(answer) as (first, asked), breaking_off(answer) as (second, asked_too):
        streamd = Shell(f"{first},{second}")
        streamd.fails(status, "cluster", "--retry-for", "20", "transfer")
    assert (len(asked), len(asked_too)) == (1, 0)
    assert asked[0].startswith(b"POST /cluster/transfer ")


def test_an_answer_that_is_not_json_is_refused() -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nsome"
    with breaking_off(page) as (url, _):
        assert "not streamd's" in Shell(url).fails(1, "cluster", "status")
        assert "not streamd's" in Shell(url).fails(1, "list", "bucket")


def foreign(body: bytes, **headers: str) -> bytes:
    """The answer of another service, or of a server that breaks the protocol."""
    told = {"Content-Length": str(len(body)), "Connection": "close", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in told.items())
    return f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode() + body


@pytest.mark.parametrize(
    "words",
    [
        "cluster status",
        "cluster promote 2",
        "cluster snapshot",
        "cold status",
        "cold flush --json",
        "cold gc --json",
        "cold scrub start",
        "cold scrub status",
        "limits list",
        "token list",
        "token rotate x",
    ],
)
def test_json_of_another_service_is_refused(words: str) -> None:
    with breaking_off(foreign(b'{"leads":true,"members":[{}]}')) as (url, _):
        sentence = Shell(url).fails(1, *words.split())
    assert "the answer is not streamd's: it has no '" in sentence


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ("read", b'{"a": 1}'),
        ("read --json", b"5"),
        ("tail", b"[1"),
        ("tail -f --from-start", b"[1,"),
    ],
)
def test_a_json_stream_that_is_not_an_array_is_refused(words: str, body: bytes) -> None:
    answer = foreign(
        body, Content_Type="application/json", Stream_Next_Offset="1", Stream_Up_To_Date="true"
    )
    with breaking_off(answer) as (url, _):
        sentence = Shell(url).fails(1, *words.split(), "demo/x")
    assert sentence.startswith("demo/x: the answer breaks the protocol: ")
    assert sentence.endswith("(200 UNEXPECTED)")


TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


def test_a_command_waits_as_long_as_a_server_asks() -> None:
    with breaking_off(TOO_MANY) as (url, asked):
        sentence = Shell(url).fails(3, "cluster", "--retry-for", "1.5", "transfer")
    assert sentence.startswith("the server cannot serve the request now (429 ")
    assert len(asked) == 2, "nothing had changed, so it was sent again: once in 1.5 s"


def test_a_change_of_the_members_without_an_answer_may_have_taken_effect() -> None:
    with breaking_off(b"") as (url, _):
        assert "may have taken effect" in Shell(url).fails(3, "cluster", "remove", "7")


def test_a_long_wait_for_an_answer_is_announced_once() -> None:
    with breaking_off(BUSY) as (url, asked):
        done = Shell(url).run("read", "x", "--retry-for", "7")
    first, last = done.stderr.decode().splitlines()
    assert first.startswith(f"streamd: {url} cannot serve the request now (503 ")
    assert first.endswith("; trying again")
    assert last.startswith("streamd: x: the server cannot serve the request now (503 ")
    assert (done.returncode, len(asked) > 3) == (3, True)


def test_a_peer_that_does_not_answer_is_refused_at_once(server: ServerProcess) -> None:
    streamd = Shell(server.url)
    streamd.fails(1, "cluster", "--retry-for", "600", "add", f"127.0.0.1:{unused_port()}")
