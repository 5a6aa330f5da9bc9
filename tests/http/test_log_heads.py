"""Any node gives its signed head of the log, and proves that it continues an earlier one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamd.proofs.heads import parse_key, text_of
from streamd.proofs.published import checked, is_continued, read_published
from tests.client.running import Shell
from tests.jepsen_like.cluster_processes import wait_until
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client

TEXT = {"Content-Type": "text/plain"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("heads")
    (directory / "cold").mkdir(mode=0o700)
    environment = {
        "STREAMD_COLD_BACKEND": "fs",
        "STREAMD_COLD_FS_PATH": str(directory / "cold"),
        "STREAMD_LOG_AUDIT": str(directory / "audit"),
    }
    with ServerProcess(directory / "data", environment=environment) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with checked_client(base_url=server.url) as client:
        yield client


def head_after(client: httpx.Client, body: bytes) -> dict[str, Any]:
    """The head once an append is archived."""
    client.put("/v1/stream/a", headers=TEXT)
    applied = client.get("/cluster/status").json()["last_applied"]
    client.post("/v1/stream/a", headers=TEXT, content=body).raise_for_status()

    def is_archived() -> bool:
        answer = client.get("/cluster/log-head")
        assert answer.status_code in (200, 409)
        return answer.is_success and checked(read_published(answer.content)).head.index > applied

    wait_until(is_archived, "the append is archived")
    found: dict[str, Any] = client.get("/cluster/log-head").json()
    return found


def test_the_head_is_signed_and_continues_an_earlier_one(client: httpx.Client) -> None:
    old = checked(read_published(json.dumps(head_after(client, b"one")).encode()))
    head_after(client, b"two")
    answer = client.get("/cluster/log-head", params={"since": str(old.head.size)})
    assert answer.headers["Cache-Control"] == "no-store"
    told = read_published(answer.content)
    new = checked(told)
    assert (new.first_key, new.head.first_index) == (old.first_key, 1)
    assert is_continued(old.head, new.head, told.path)


@pytest.mark.parametrize("since", ["0", "99999999", "x", "-1", ""])
def test_a_size_that_no_earlier_head_can_have_is_refused(client: httpx.Client, since: str) -> None:
    head_after(client, b"one")
    answer = client.get("/cluster/log-head", params={"since": since})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


def test_a_node_without_a_cold_store_has_no_head(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, checked_client(base_url=server.url) as client:
        for answer in (
            client.get("/cluster/log-head"),
            client.post("/cluster/log-key/rotate", json={}),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NO_COLD_STORE")
    assert not (tmp_path / "data" / "log-key").exists()


@pytest.mark.long
def test_the_commands_print_and_compare_heads(
    server: ServerProcess, client: httpx.Client, tmp_path: Path
) -> None:
    streamd, kept = Shell(server.url), tmp_path / "head.json"
    head_after(client, b"one")
    kept.write_bytes(streamd("log-head"))
    old = checked(read_published(kept.read_bytes()))
    assert parse_key(streamd("log-head", "--keys").decode()) == old.first_key
    note = streamd("log-head", "--note").decode()
    assert text_of(note, old.first_key).splitlines()[0] == f"streamd/{old.head.cluster_id}/0/1"
    before = streamd("log-head", "--keys")
    told = streamd("log-key", "rotate").decode()
    assert f"signed by {old.first_key}" in told
    assert streamd("log-head", "--keys") == before, "it leads back to the first key"
    assert (server.data_dir / "log-key").stat().st_mode & 0o777 == 0o600
    assert b"log-key/rotate" in (server.data_dir.parent / "audit").read_bytes()
    head_after(client, b"two")
    done = streamd.run("log-head", "--since", str(kept))
    assert done.returncode == 0
    new = checked(read_published(done.stdout)).head
    expected = f"entries 1 to {old.head.index} are what they were (of 1 to {new.index} now)"
    assert expected in done.stderr.decode()


def test_a_head_that_the_log_does_not_continue_is_named(
    server: ServerProcess, client: httpx.Client, tmp_path: Path
) -> None:
    streamd, kept = Shell(server.url), tmp_path / "head.json"
    ours = head_after(client, b"one")
    with_cold = {"STREAMD_COLD_BACKEND": "fs", "STREAMD_COLD_FS_PATH": str(tmp_path / "cold")}
    (tmp_path / "cold").mkdir(mode=0o700)
    with (
        ServerProcess(tmp_path / "data", environment=with_cold) as other,
        checked_client(base_url=other.url) as theirs,
    ):
        kept.write_text(json.dumps(head_after(theirs, b"one")))
    told = streamd.fails(1, "log-head", "--since", str(kept))
    assert "the heads have different first keys" in told
    kept.write_text(json.dumps({**ours, "keys": []}))
    assert "is not a head with a valid signature" in streamd.fails(
        1, "log-head", "--since", str(kept)
    )
