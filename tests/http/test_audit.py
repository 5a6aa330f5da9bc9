"""The audit trail of running servers: acts and refusals, wherever they are decided, and nothing
that a reader of it must not know."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from streamd.commands.cli import main
from tests.http.authorized import PLACES, ROOT, Authorized, authorized
from tests.http.pki import make_pki
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

Entry = dict[str, Any]
TRAIL = "/v1/stream/ops/audit"
PATIENCE_S = 30.0
# More than any file of a fresh node has.
ROOM_BYTES = 64 * 1024 * 1024
FORGED = ROOT[:-1] + ("a" if ROOT[-1] != "a" else "b")


class Audited:
    """Servers with an audit trail in the stream `TRAIL`, and its entries."""

    def __init__(self, servers: Authorized) -> None:
        self.servers = servers
        self.ask = servers.ask

    def entries(self) -> list[Entry]:
        found = self.ask("GET", TRAIL)
        return found.json() if found.status_code == 200 else []

    def wait_for(self, event: str, **values: object) -> Entry:
        """The first entry of an event with these values."""
        found: list[Entry] = []

        def is_there() -> bool:
            found[:] = [
                entry
                for entry in self.entries()
                if {"event": event, **values}.items() <= entry.items()
            ]
            return bool(found)

        self.servers.until(is_there)
        return found[0]


@pytest.fixture(params=PLACES, scope="module")
def audited(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Audited]:
    directory = tmp_path_factory.mktemp("audited")
    with authorized(request.param, directory, STREAMD_LOG_AUDIT="stream:ops/audit") as servers:
        yield Audited(servers)


def test_the_start_of_a_node_is_recorded_with_its_mode(audited: Audited) -> None:
    entry = audited.wait_for("started")
    assert entry["auth"] == "required"
    assert entry["root_tokens"] == ["root token of the configuration"]


def test_an_act_has_an_entry_before_it_and_one_with_its_outcome(audited: Audited) -> None:
    scopes = ["read:agents/*", "append:agents/*"]
    body = {"name": "maker", "scopes": scopes, "expires_in_s": 60}
    made = audited.ask("POST", "/auth/tokens", json=body).json()
    done = audited.wait_for("done", path="/auth/tokens", status=201)
    asked = audited.wait_for("asked", id=done["of"])
    assert done["who"] == "root token of the configuration"
    assert done["credential"] == "root token"
    assert done["from"] == "127.0.0.1"
    assert done["needs"] == ["admin:*"]
    assert done["details"] == {"token": made["about"]["id"], **body}
    assert asked.items() >= {key: done[key] for key in ("who", "from", "method", "path")}.items()
    assert made["token"] not in json.dumps(audited.entries())


def test_the_end_of_a_token_is_recorded_with_its_name(audited: Audited) -> None:
    token = audited.servers.token("admin:*")
    token_id = audited.servers.named(token)
    audited.ask("POST", f"/auth/tokens/{token_id}/rotate", token, json={"overlap_s": 5})
    entry = audited.wait_for("done", path=f"/auth/tokens/{token_id}/rotate")
    assert entry["credential"] == f"token {token_id}"
    assert entry["details"]["overlap_s"] == 5
    audited.ask("DELETE", f"/auth/tokens/{token_id}")
    entry = audited.wait_for("done", method="DELETE", path=f"/auth/tokens/{token_id}")
    assert entry["status"] == 204
    assert entry["details"]["name"].startswith("token-")


def test_buckets_and_operations_are_acts_and_streams_are_not(audited: Audited) -> None:
    audited.ask("PUT", "/agents")
    audited.ask("PUT", "/agents/run", headers={"Content-Type": "text/plain"})
    audited.ask("POST", "/cluster/snapshot", json={})
    audited.ask("DELETE", "/agents")
    audited.wait_for("done", method="PUT", path="/agents", route="bucket", status=201)
    audited.wait_for("done", path="/cluster/snapshot", needs=["operate:cluster/snapshot"])
    audited.wait_for("done", method="DELETE", path="/agents", status=409)
    assert not [entry for entry in audited.entries() if entry.get("path") == "/agents/run"]


def test_the_administration_of_subscriptions_is_an_act_and_their_work_is_not(
    audited: Audited,
) -> None:
    path = "/v1/stream/__ds/subscriptions/trailed"
    hook = {"url": "https://a.example/hook?key=hush"}
    body = {"type": "webhook", "pattern": "trailed/*", "webhook": hook}
    assert audited.ask("PUT", path, json=body).status_code == 201
    entry = audited.wait_for("done", method="PUT", path=path, route="subscription", status=201)
    assert entry["details"] == {
        "subscription": "trailed", "type": "webhook", "pattern": "trailed/*", "streams": 0
    }  # fmt: skip
    assert audited.ask("POST", f"{path}/claim", json={"worker": "w"}).status_code == 400
    assert audited.ask("POST", f"{path}/ack", "dsc_hush.hush", json={}).status_code == 401
    assert audited.ask("DELETE", path).status_code == 204
    audited.wait_for("done", method="DELETE", path=path, status=204)
    audited.wait_for("refused", path=f"{path}/ack", code="TOKEN_INVALID")
    entries = audited.entries()
    assert not [one for one in entries if one.get("path") == f"{path}/claim"]
    assert "hush" not in json.dumps(entries)


def test_a_refusal_says_who_wanted_what(audited: Audited) -> None:
    token = audited.servers.token("read:mine/*")
    audited.ask("GET", "/v1/stream/theirs/a%20b?offset=now", token)
    entry = audited.wait_for("refused", path="/v1/stream/theirs/a%20b")
    assert entry["status"] == 403
    assert entry["who"].startswith("token-")
    assert entry["credential"] == f"token {audited.servers.named(token)}"
    assert entry["needs"] == ["read:theirs/a%20b"]
    assert "offset" not in json.dumps(entry), "there is nothing of the query"


def test_a_refused_body_is_not_awaited_and_its_refusal_recorded(audited: Audited) -> None:
    audited.ask("POST", "/v1/stream/theirs/large", None, content=b"x" * 100_000)
    entry = audited.wait_for("refused", path="/v1/stream/theirs/large")
    assert (entry["status"], entry["code"], entry["who"]) == (401, "AUTHENTICATION_REQUIRED", None)


def test_a_forged_token_shows_its_id_only(audited: Audited) -> None:
    audited.ask("GET", "/v1/stream/theirs/b", FORGED)
    entry = audited.wait_for("refused", path="/v1/stream/theirs/b")
    assert entry["who"] is None
    assert entry["credential"] == "token 0000000000000001"


def test_a_signed_url_names_its_signer_and_shows_no_signature(audited: Audited) -> None:
    token = audited.servers.token("read:mine/*", "read:theirs/*")
    body = {"url": "/v1/stream/mine/a", "methods": ["GET"]}
    made = audited.ask("POST", "/auth/sign", token, json=body).json()
    query = made["url"].partition("?")[2]
    audited.ask("GET", f"/v1/stream/theirs/signed?{query}", None)
    entry = audited.wait_for("refused", path="/v1/stream/theirs/signed")
    assert (entry["status"], entry["code"]) == (401, "INVALID_SIGNED_URL")
    assert entry["credential"] == f"signed URL of token {audited.servers.named(token)}"
    assert query.rpartition(".")[2] not in json.dumps(audited.entries())
    assert not [each for each in audited.entries() if each.get("path") == "/auth/sign"]


def test_secrets_in_the_wrong_place_are_not_recorded(audited: Audited) -> None:
    token = audited.servers.token("read:mine/*")
    audited.ask("DELETE", f"/auth/tokens/{token}", token)
    audited.ask("DELETE", f"/auth/tokens/{token}?token={token}")
    entry = audited.wait_for("done", method="DELETE", status=404)
    assert entry["path"] == f"/auth/tokens/sd_{audited.servers.named(token)}_***"
    audited.wait_for("refused", method="DELETE")
    assert token not in json.dumps(audited.entries())


def test_control_characters_forge_no_line(audited: Audited) -> None:
    path = "/cluster/%0a%7B%22event%22%3A%22done%22%7D"
    audited.ask("GET", path, None)
    assert audited.wait_for("refused", path=path)["needs"] == ["admin:*"]


def test_what_a_proxy_says_is_repeated_as_such(audited: Audited) -> None:
    said = {"X-Forwarded-For": "203.0.113.9, 10.0.0.1", "X-Request-Id": "7f3c-12"}
    audited.ask("GET", "/v1/stream/theirs/c", None, headers=said)
    entry = audited.wait_for("refused", path="/v1/stream/theirs/c")
    assert entry["from"] == "127.0.0.1"
    assert entry["forwarded_for"] == "203.0.113.9, 10.0.0.1"
    assert entry["request_id"] == "7f3c-12"
    audited.ask("GET", "/v1/stream/theirs/d", None, headers={"X-Request-Id": "<script>"})
    assert "request_id" not in audited.wait_for("refused", path="/v1/stream/theirs/d")


def test_the_trail_is_read_with_a_scope_like_any_stream(audited: Audited) -> None:
    auditor, other = audited.servers.token("read:ops/*"), audited.servers.token("read:opsx/*")
    assert audited.ask("GET", TRAIL, auditor).status_code == 200
    assert audited.ask("GET", TRAIL, other).status_code == 403
    audited.wait_for("refused", path=TRAIL, status=403)
    seen = {entry["event"] for entry in audited.entries() if entry.get("path") == TRAIL}
    assert seen == {"refused"}, "neither a read of the trail nor its own growth makes an entry"


class AuditedFile:
    """A server with an audit trail in a file."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.file = directory / "audit.jsonl"
        environment = {"STREAMD_LOG_AUDIT": str(self.file), **environment}
        self.process = ServerProcess(directory / "data", environment=environment)

    def entries(self, file: Path | None = None) -> list[Entry]:
        return [json.loads(line) for line in (file or self.file).read_text().splitlines()]

    def wait_for(self, event: str, count: int = 1) -> list[Entry]:
        """The entries of an event, once there are so many."""
        deadline = time.monotonic() + PATIENCE_S
        while len(found := [each for each in self.entries() if each["event"] == event]) < count:
            assert time.monotonic() < deadline, self.entries()
            time.sleep(0.02)
        return found


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_pages_and_foreign_names_are_refused_with_an_entry(tmp_path: Path, workers: str) -> None:
    server = AuditedFile(tmp_path, STREAMD_SERVER_WORKERS=workers)
    with server.process as process, httpx.Client(base_url=process.url) as client:
        client.get("/v1/stream/a", headers={"Origin": "https://evil.example"})
        client.post("/cluster/snapshot", headers={"Host": "evil.example"}, json={})
        server.wait_for("refused", 2)
        assert process.stop() == 0
    started, page, name, stopped = server.entries()
    assert (started["event"], started["auth"]) == ("started", "none")
    assert (page["status"], page["code"]) == (403, "ORIGIN_NOT_ALLOWED")
    assert (name["status"], name["code"]) == (421, "HOST_NOT_ALLOWED")
    assert (stopped["event"], stopped["error"]) == ("stopped", None)


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_a_hangup_opens_the_file_again_and_loads_certificates(tmp_path: Path, workers: str) -> None:
    pki = make_pki(tmp_path)
    tls = {"STREAMD_SERVER_TLS_CERT": str(pki.certificate), "STREAMD_SERVER_TLS_KEY": str(pki.key)}
    server = AuditedFile(tmp_path, STREAMD_SERVER_WORKERS=workers, **tls)
    rotated = tmp_path / "audit.jsonl.1"
    with server.process as process:
        server.wait_for("started")
        server.file.rename(rotated)
        server.file.touch()
        assert process.process is not None
        os.kill(process.process.pid, signal.SIGHUP)
        loaded = server.wait_for("tls-loaded", int(workers))
        assert process.stop() == 0
    assert [each["event"] for each in server.entries(rotated)] == ["started"]
    assert loaded[0]["files"] == [str(pki.certificate), str(pki.key)]
    assert loaded[0]["error"] is None


def test_what_the_listener_for_operations_decides_is_recorded(tmp_path: Path) -> None:
    admin = f"http://127.0.0.1:{unused_port()}"
    server = AuditedFile(tmp_path, STREAMD_ADMIN_LISTEN=admin.removeprefix("http://"))
    with server.process:
        httpx.post(f"{admin}/cluster/snapshot", json={})
        httpx.get(f"{admin}/cluster/status", headers={"Host": "evil.example"})
        (done,), (refused,) = server.wait_for("done"), server.wait_for("refused")
    assert (done["path"], done["status"]) == ("/cluster/snapshot", 200)
    assert (refused["path"], refused["status"]) == ("/cluster/status", 421)


def test_nothing_is_administered_while_the_disk_of_the_trail_is_full(tmp_path: Path) -> None:
    server = AuditedFile(tmp_path)
    with server.process as process, httpx.Client(base_url=process.url) as client:
        server.wait_for("started")
        assert process.process is not None
        # Files of the node itself are smaller than this at its start, and the trail's is not.
        with server.file.open("a") as file:
            file.write("\n" * ROOM_BYTES)
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (ROOM_BYTES, ROOM_BYTES))
        refused = client.put("/agents")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "AUDIT_UNAVAILABLE")
        assert client.get("/agents").status_code == 404, "nothing was done"
        assert client.put("/v1/stream/hello", content=b"x").status_code == 201
        assert "streamd_audit_failing 1.0" in client.get("/metrics").text
        server.file.write_text("")
        assert client.put("/agents").status_code == 201
        assert process.stop() == 0
    assert [each["event"] for each in server.entries()] == ["asked", "done", "stopped"]
    assert "the audit trail cannot be written" in process.output


def test_an_act_survives_a_crash_right_after_its_answer(tmp_path: Path) -> None:
    server = AuditedFile(tmp_path)
    with server.process as process, httpx.Client(base_url=process.url) as client:
        assert client.put("/agents").status_code == 201
        process.kill()
    assert [each["event"] for each in server.entries()] == ["started", "asked", "done"]


def test_a_node_does_not_start_with_a_trail_that_it_cannot_write(tmp_path: Path) -> None:
    environment = {"STREAMD_LOG_AUDIT": str(tmp_path)}
    process = ServerProcess(tmp_path / "data", environment=environment, expect_death=True)
    with process:
        assert process.wait() == 2
    assert "log.audit" in process.output


def test_a_root_token_made_offline_is_recorded_or_not_made(tmp_path: Path) -> None:
    file, data = tmp_path / "audit.jsonl", tmp_path / "data"
    command = ["token", "bootstrap", "--offline", "--data-dir", str(data)]
    for audit in (tmp_path, file):
        ran = CliRunner().invoke(main, command, env={"STREAMD_LOG_AUDIT": str(audit)})
        if audit == tmp_path:
            assert ran.exit_code == 2
            assert not (data / "root-token").exists()
    entry = json.loads(file.read_text())
    assert entry["event"] == "root-token-made"
    assert entry["data_dir"] == str(data)
    assert ran.output.strip() not in file.read_text()
