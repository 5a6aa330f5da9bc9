"""``streamd token`` against servers that require tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.authorized import ROOT, authorized
from tests.support import prefork
from tests.support.server_process import ServerProcess

REQUIRED = {"STREAMD_AUTH_MODE": "required"}


def streamd(
    *arguments: str, token: str | None = None, url: str = "", status: int = 0
) -> subprocess.CompletedProcess[str]:
    environment = {"STREAMD_URL": url} if url else {}
    if token is not None:
        environment["STREAMD_TOKEN"] = token
    ran = prefork.run_text(*arguments, environment=environment)
    assert ran.returncode == status, ran.stderr
    return ran


def bootstrap(data_dir: Path) -> str:
    return streamd("token", "bootstrap", "--offline", "--data-dir", str(data_dir)).stdout.strip()


def test_a_node_is_set_up_from_its_first_token_to_a_narrow_one(tmp_path: Path) -> None:
    root = bootstrap(tmp_path / "data")
    with ServerProcess(tmp_path / "data", environment=REQUIRED) as server:
        url = server.url
        made = streamd(
            "token", "create", "--name", "ci", "--scope", "append:agents/run-*",
            "--scope", "create:agents/*", "--expires", "30d", token=root, url=url,
        )  # fmt: skip
        ci = made.stdout.strip()
        streamd("create", "agents/run-1", token=ci, url=url)
        refused = streamd("read", "agents/run-1", token=ci, url=url, status=1)
        assert "INSUFFICIENT_SCOPE" in refused.stderr
        assert "AUTHENTICATION_REQUIRED" in streamd("head", "a/b", url=url, status=1).stderr

        [listed] = json.loads(streamd("token", "list", "--json", token=root, url=url).stdout)
        assert listed["scopes"] == ["append:agents/run-*", "create:agents/*"]
        assert listed["expires_at_ms"] - listed["created_at_ms"] == 30 * 86_400_000
        assert "ci" in streamd("token", "list", token=root, url=url).stdout
        shown = json.loads(streamd("token", "show", listed["id"], token=root, url=url).stdout)
        assert shown == listed

        rotated = streamd("token", "rotate", "ci", "--overlap", "0", token=root, url=url)
        again = rotated.stdout.strip()
        assert "INVALID_TOKEN" in streamd("create", "agents/x", token=ci, url=url, status=1).stderr
        streamd("create", "agents/x", token=again, url=url)
        streamd("token", "revoke", "ci", token=root, url=url)
        streamd("create", "agents/y", token=again, url=url, status=1)
        assert streamd("cluster", "status", token=root, url=url).stdout
        streamd("cluster", "status", url=url, status=1)


def test_a_root_token_signs_no_url_that_no_server_would_accept(tmp_path: Path) -> None:
    root = bootstrap(tmp_path / "data")
    refused = streamd("sign", "http://127.0.0.1:4437/agents/run-1", token=root, status=2)
    assert refused.stdout == ""
    assert "streamd token create" in refused.stderr


def test_a_token_may_come_from_a_file(tmp_path: Path) -> None:
    root = bootstrap(tmp_path / "data")
    file = tmp_path / "token"
    file.write_text(root + "\n")
    with ServerProcess(tmp_path / "data", environment=REQUIRED) as server:
        streamd("create", "--token-file", str(file), "a/b", url=server.url)
    file.write_text("two words")
    told = streamd("create", "--token-file", str(file), "a/b", url=server.url, status=2).stderr
    assert "characters other than" in told
    assert "two words" not in told


def test_a_node_without_any_token_says_how_to_make_one(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", environment=REQUIRED) as server:
        server.stop()
    assert "streamd token bootstrap --offline" in server.output
    assert "STREAMD_ROOT_TOKEN" in server.output


def test_the_hash_of_a_root_token_is_kept_privately_and_replaced(tmp_path: Path) -> None:
    first = bootstrap(tmp_path / "data")
    second = bootstrap(tmp_path / "data")
    kept = tmp_path / "data" / "root-token"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert first.rpartition("_")[2] not in kept.read_text()
    with ServerProcess(tmp_path / "data", environment=REQUIRED) as server:
        streamd("token", "list", token=first, url=server.url, status=1)
        streamd("token", "list", token=second, url=server.url)
        running = streamd(
            "token", "bootstrap", "--offline", "--data-dir", str(tmp_path / "data"), status=1
        )
        assert "in use" in running.stderr
        server.stop()
        assert second not in server.output


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1w", "0d", "1.5h"])
def test_a_time_has_a_unit(text: str) -> None:
    told = streamd(
        "token", "create", "--name", "a", "--scope", "read:*", "--expires", text, status=2
    )
    assert "is not a time" in told.stderr


def test_a_root_token_that_is_no_token_is_refused_at_the_start(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "streamd", "serve", "--data-dir", str(tmp_path / "data")],
        env={"STREAMD_ROOT_TOKEN": "letmein"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    assert "auth.root_token" in ran.stderr
    assert "letmein" not in ran.stderr


def test_a_token_is_sent_only_to_the_nodes_that_are_named(tmp_path: Path) -> None:
    """A node that does not lead redirects writers: as with curl, their token does not follow."""
    with authorized("cluster", tmp_path, STREAMD_SERVER_NON_LEADER="redirect") as place:
        token = place.token("create:demo/*", "read:demo/*")
        leader = place.ask("GET", "/cluster/status", ROOT).json()["leader_id"]
        urls = {place.ask("GET", "/cluster/status", ROOT, url=url).json()["node_id"]: url
                for url in place.urls}  # fmt: skip
        at_leader = urls.pop(leader)
        for follower in urls.values():
            refused = streamd("create", "demo/x", token=token, url=follower, status=1).stderr
            assert "401 AUTHENTICATION_REQUIRED" in refused
            assert f"{at_leader}/ gets no token unless it is one of the URLs given" in refused
            assert place.ask("GET", "/v1/stream/demo/x", ROOT).status_code == 404
        for follower in urls.values():
            streamd("create", "demo/x", token=token, url=f"{follower},{at_leader}")
        streamd("head", "demo/x", token=token, url=follower)
