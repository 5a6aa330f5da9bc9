"""Keys of subscriptions leave the server by no route; operators replace them."""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from streamd.http import routes
from streamd.storage.state_store import StateStore
from streamd.streams.subscriptions.records import SubscriptionRecords
from streamd.streams.subscriptions.signing_keys import (
    MAX_SUBSCRIPTION_KEYS,
    SECRET_BYTES,
    SubscriptionKey,
    opened,
)
from tests.client.running import Shell
from tests.support import prefork
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client

SECRET = "0123456789abcdef" * 4


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"STREAMD_LOG_LEVEL": "debug", "STREAMD_LOG_AUDIT": str(tmp_path / "audit")}


@pytest.fixture
def server(tmp_path: Path, environment: dict[str, str]) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        yield server


def rotated(client: httpx.Client) -> dict[str, object]:
    answer = client.post("/cluster/subscription-keys/rotate", json={})
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


def test_a_rotation_replaces_the_key_and_keeps_the_one_before(server: ServerProcess) -> None:
    with checked_client(base_url=server.url) as client:
        first = rotated(client)
        assert first["published"] == [first["kid"]]
        second = rotated(client)
        assert second["published"] == [second["kid"], first["kid"]]


def test_too_many_rotations_are_refused(server: ServerProcess) -> None:
    with checked_client(base_url=server.url) as client:
        for _ in range(MAX_SUBSCRIPTION_KEYS):
            rotated(client)
        answer = client.post("/cluster/subscription-keys/rotate", json={})
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "TOO_MANY_SUBSCRIPTION_KEYS"


def test_a_stolen_key_is_revoked_and_the_audit_trail_says_so(
    server: ServerProcess, tmp_path: Path
) -> None:
    with checked_client(base_url=server.url) as client:
        for _ in range(MAX_SUBSCRIPTION_KEYS):
            stolen = rotated(client)["kid"]
        answer = client.post("/cluster/subscription-keys/rotate", json={"revoke": "yes"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
        answer = client.post("/cluster/subscription-keys/rotate", json={"revoke": True})
        kid = answer.json()["kid"]
        assert answer.json() == {"kid": kid, "published": [kid]}
        assert kid != stolen
        published = client.get("/v1/stream/__ds/jwks.json").json()["keys"]
        assert [one["kid"] for one in published] == [kid]
        assert Shell(server.url)("keys", "rotate", "--revoke").endswith(b" is the key in use\n")
    assert server.stop() == 0
    trail = [json.loads(line) for line in (tmp_path / "audit").read_bytes().splitlines()]
    acts = [one["details"] for one in trail if one["event"] == "done" and one["status"] == 200]
    assert [one["revoke"] for one in acts] == [False] * MAX_SUBSCRIPTION_KEYS + [True, True]
    assert acts[-2]["kid"] == kid


def test_the_command_says_which_keys_are_published(server: ServerProcess) -> None:
    shell = Shell(server.url)
    first = shell("keys", "rotate").decode()
    assert first.startswith("ds_")
    assert first.endswith(" is the key in use\n")
    kid = first.split()[0]
    assert shell("keys", "rotate").decode().endswith(f" is the key in use; also published: {kid}\n")


def spellings(secret: bytes) -> list[bytes]:
    """A secret as it could be written down, in whole or in its halves."""
    found = []
    for part in (secret, secret[:32], secret[32:]):
        encoded = base64.b64encode(part).rstrip(b"=")
        found += [part, part.hex().encode(), encoded, base64.urlsafe_b64encode(part).rstrip(b"=")]
        # As JSON, and as Python shows bytes.
        found += [json.dumps(list(part)).encode(), repr(part)[2:-1].encode()]
    return found


def keys_in(data: Path) -> list[SubscriptionKey]:
    store = StateStore(data / "state")
    try:
        return list(SubscriptionRecords(store).keys.values())
    finally:
        store.close()


def every_answer(client: httpx.Client) -> bytes:
    """What all GET routes without parameters answer."""
    paths = {
        route.path.template
        for route in (*routes.STREAMS, *routes.OPERATIONS)
        if route.method == "GET" and "{" not in route.path.template
    }
    assert len(paths) > 15
    found = b""
    for path in sorted(paths):
        with client.stream("GET", path, timeout=20) as answer:
            found += answer.read() + repr(answer.headers.raw).encode()
    return found


def every_report(url: str, file: Path) -> bytes:
    """What `streamd debug bundle` collects."""
    ran = prefork.run_text("debug", "bundle", "--url", url, "-o", str(file))
    assert ran.returncode == 0, ran.stderr
    with tarfile.open(file) as bundle:
        parts = [bundle.extractfile(one) for one in bundle]
        reports = [part.read() for part in parts if part is not None]
    assert len(reports) > 5
    return b"".join(reports)


def test_private_keys_leave_by_no_route_log_or_trail(server: ServerProcess, tmp_path: Path) -> None:
    with checked_client(base_url=server.url) as client:
        rotated(client)
        rotated(client)
        told = every_answer(client)
    told += every_report(server.url, tmp_path / "bundle.tar.gz")
    assert server.stop() == 0
    told += server.output.encode() + (tmp_path / "audit").read_bytes()
    keys = keys_in(tmp_path / "data")
    assert [key.is_sealed for key in keys] == [False, False]
    assert all(len(key.secret) == SECRET_BYTES for key in keys)
    for key in keys:
        for spelling in spellings(key.secret):
            assert spelling not in told


def test_sealed_keys_are_in_the_clear_in_no_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    environment = {"STREAMD_SUBSCRIPTIONS_SECRET_FILE": str(file)}
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        with checked_client(base_url=server.url) as client:
            rotated(client)
        assert server.stop() == 0
        assert SECRET not in server.output
    [key] = keys_in(tmp_path / "data")
    assert key.is_sealed
    secret = opened(key, SECRET.encode())
    stored = b"".join(one.read_bytes() for one in (tmp_path / "data").rglob("*") if one.is_file())
    assert key.secret in stored
    for half in (secret.private_key, secret.mac_key, SECRET.encode()):
        assert half not in stored
