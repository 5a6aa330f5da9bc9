"""``streamd backup save``: a running node's backup without a cold store, and its restore."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio

from streamd.backup.saving import IDLE_S, BackupInProgress, NoSuchBackup
from streamd.group.stores import Stores
from tests.backup.history import damage
from tests.http.authorized import authorized
from tests.support import prefork
from tests.support.nodes import append_to, create, running_node
from tests.support.server_process import ServerProcess

_TEXT = {"Content-Type": "text/plain"}
_WIDTH = 10_000


def streamd(*arguments: object) -> subprocess.CompletedProcess[str]:
    return prefork.run_text(*map(str, arguments))


def pieces_in(saved: Path) -> list[Path]:
    return list(saved.glob("*/pieces/*/*.piece"))


def record(number: int) -> bytes:
    # Not compressible, so that a backup has several objects.
    return (b"%08d" % number) + os.urandom(_WIDTH // 2 - 4).hex().encode()


class Writer:
    """Appends numbered records until the block ends, and knows how many were acknowledged."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/stream/numbers"
        self.acknowledged = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while self.acknowledged < count:
            assert time.monotonic() < deadline
            assert self._thread.is_alive()
            time.sleep(0.01)

    def _run(self) -> None:
        with httpx.Client(headers=_TEXT, timeout=30) as client:
            assert client.put(self._url).status_code == 201
            while not self._stopped.is_set():
                try:
                    answer = client.post(self._url, content=record(self.acknowledged))
                except httpx.HTTPError:
                    return  # The server was killed.
                assert answer.status_code == 204
                self.acknowledged += 1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as running:
        yield running


def restored_numbers(saved: Path, new: Path) -> int:
    """Restore a backup; how many records its stream has, from the first on without a gap."""
    done = streamd("restore", "--from", f"fs:{saved}", "--no-fence", "--data-dir", new)
    assert done.returncode == 0, done.stderr
    with ServerProcess(new) as server:
        content, offset = b"", "-1"
        while True:
            url = f"{server.url}/v1/stream/numbers?offset={offset}"
            read = httpx.get(url, timeout=30)
            assert read.status_code == 200
            content += read.content
            offset = read.headers["Stream-Next-Offset"]
            if read.headers.get("Stream-Up-To-Date") == "true":
                break
        assert httpx.post(url, content=b"more", headers=_TEXT).status_code == 204
        assert server.stop() == 0
    assert len(content) % _WIDTH == 0
    count = len(content) // _WIDTH
    assert [int(content[at * _WIDTH : at * _WIDTH + 8]) for at in range(count)] == [*range(count)]
    return count


def test_a_backup_has_all_that_was_acknowledged_before_it_began(
    server: ServerProcess, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    with Writer(server.url) as writer:
        writer.wait_for(900)
        before = writer.acknowledged
        done = streamd("backup", "save", saved, "--url", server.url, "--json")
        after = writer.acknowledged
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(pieces_in(saved)) > 1
    assert saved.stat().st_mode & 0o077 == 0
    verified = streamd("backup", "verify", "--from", f"fs:{saved}", "--json")
    assert verified.returncode == 0, verified.stdout
    [found] = json.loads(verified.stdout)
    assert (found["cluster_id"], found["problems"]) == (told["cluster_id"], [])
    status = streamd("backup", "status", "--from", f"fs:{saved}", "--json")
    [[only]] = [one["ranges"] for one in json.loads(status.stdout)]
    assert only["first_index"] == only["last_index"] == told["index"]
    assert before <= restored_numbers(saved, tmp_path / "new") <= after + 1


def test_a_save_whose_command_is_killed_is_no_backup_and_can_be_repeated(
    server: ServerProcess, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    with Writer(server.url) as writer:
        writer.wait_for(900)
        count = writer.acknowledged
    command = [sys.executable, "-m", "streamd", "backup", "save", str(saved), "--url", server.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not pieces_in(saved):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (saved / ".unfinished").exists()
    new = tmp_path / "new"
    refused = streamd("restore", "--from", f"fs:{saved}", "--no-fence", "--data-dir", new)
    assert refused.returncode == 1
    assert "interrupted `streamd backup save`" in refused.stderr
    assert not new.exists()
    # The node keeps the view of the dead command for a minute.
    again = streamd("backup", "save", saved, "--url", server.url)
    assert again.returncode == 1
    assert "within a minute" in again.stderr
    assert server.stop() == 0
    with ServerProcess(server.data_dir) as restarted:
        again = streamd("backup", "save", saved, "--url", restarted.url)
        assert again.returncode == 0, again.stderr
    assert restored_numbers(saved, new) >= count


def test_a_server_killed_in_the_middle_leaves_no_backup(
    server: ServerProcess, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    with Writer(server.url) as writer:
        writer.wait_for(900)
        flags = ["--url", server.url, "--retry-for", "0"]
        command = [sys.executable, "-m", "streamd", "backup", "save", str(saved), *flags]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while not pieces_in(saved):
            assert process.poll() is None
            time.sleep(0.005)
        server.kill()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert "Traceback" not in errors
    assert (saved / ".unfinished").exists()


def test_a_directory_with_anything_in_it_is_refused_and_left_alone(
    server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("kept")
    refused = streamd("backup", "save", tmp_path / "mine", "--url", server.url)
    assert refused.returncode == 2
    assert "is not empty" in refused.stderr
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["file"]


def test_damage_to_a_saved_backup_is_found(server: ServerProcess, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with Writer(server.url) as writer:
        writer.wait_for(10)
    assert streamd("backup", "save", saved, "--url", server.url).returncode == 0
    [piece] = pieces_in(saved)
    damage(piece)
    found = streamd("backup", "verify", "--from", f"fs:{saved}")
    assert found.returncode == 1
    assert "DAMAGE" in found.stdout


def test_a_node_with_a_cold_store_names_it_as_the_backup(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", environment={"STREAMD_COLD_BACKEND": "fs"}) as server:
        refused = streamd("backup", "save", tmp_path / "saved", "--url", server.url)
    assert refused.returncode == 1
    assert "has a cold store" in refused.stderr


def test_only_an_administrator_may_save(tmp_path: Path) -> None:
    with authorized("front-door", tmp_path) as place:
        made = place.ask("POST", "/auth/tokens", json={"name": "op", "scopes": ["operate:*"]})
        weak = {"Authorization": f"Bearer {made.json()['token']}"}
        assert httpx.post(f"{place.urls[0]}/cluster/backup", json={}).status_code == 401
        refused = httpx.post(f"{place.urls[0]}/cluster/backup", json={}, headers=weak)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "INSUFFICIENT_SCOPE")
        begun = place.ask("POST", "/cluster/backup", json={})
        assert begun.status_code == 201
        path = f"/cluster/backup/{begun.json()['backup']}"
        assert httpx.get(f"{place.urls[0]}{path}/0", headers=weak).status_code == 403
        assert place.ask("GET", f"{path}/0").status_code == 200
        assert place.ask("DELETE", path).status_code == 204
        assert place.ask("DELETE", path).status_code == 404


async def test_objects_come_in_order_and_the_last_one_again(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        begun = await node.saver.begin()
        with pytest.raises(BackupInProgress):
            await node.saver.begin()
        await append_to(node, "a", b"later")
        with pytest.raises(NoSuchBackup):
            await node.saver.object(begun.backup, 1)
        objects = [await node.saver.object(begun.backup, 0)]
        assert await node.saver.object(begun.backup, 0) == objects[0]
        while not objects[-1].is_last:
            objects.append(await node.saver.object(begun.backup, len(objects)))
        with pytest.raises(NoSuchBackup):
            await node.saver.object(begun.backup, len(objects))
        kinds = [one.name.partition("/")[0] for one in objects]
        assert kinds == ["pieces", "snapshots", "ends"]
        await node.saver.end(begun.backup)
        with pytest.raises(NoSuchBackup):
            await node.saver.object(begun.backup, 0)
        # Nobody asks about this one: it ends with the node.
        await node.saver.begin()
    Stores.open(tmp_path, 1).close()


async def test_a_backup_that_nobody_asks_about_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert IDLE_S >= 60
    monkeypatch.setattr("streamd.backup.saving.IDLE_S", 0.1)
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("a"))
        await node.saver.begin()
        with trio.fail_after(20):
            while True:
                try:
                    await node.saver.begin()
                except BackupInProgress:
                    await trio.sleep(0.01)
                else:
                    break
