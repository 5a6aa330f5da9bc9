"""The leader sends signed heads to files, streams of other clusters, and locked objects."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import httpx
import pytest
import trustme
from minio.commonconfig import COMPLIANCE
from minio.error import S3Error
from prometheus_client.parser import text_string_to_metric_families

from streamd.config.loading import load
from streamd.config.settings import ConfigError
from streamd.proofs.published import checked, read_published
from tests.http.authorized import ROOT
from tests.jepsen_like.cluster_processes import wait_until
from tests.support.minio import MinioServer
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


class Scene:
    """A node that publishes, and one that has streams for that and demands a token."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack
        (directory / "cold").mkdir(mode=0o700)
        (directory / "token").write_text(f"{ROOT}\n")
        self.receiver = ServerProcess(
            directory / "receiver",
            environment={"STREAMD_AUTH_MODE": "required", "STREAMD_ROOT_TOKEN": ROOT},
        )
        stack.enter_context(self.receiver)

    def publisher(self, *targets: str, **settings: str) -> httpx.Client:
        environment = {
            "STREAMD_COLD_BACKEND": "fs",
            "STREAMD_COLD_FS_PATH": str(self.directory / "cold"),
            "STREAMD_HEADS_PUBLISH": ",".join(targets),
            "STREAMD_HEADS_PUBLISH_EVERY_S": "1",
            **{f"STREAMD_HEADS_{name}": text for name, text in settings.items()},
        }
        self.node = ServerProcess(self.directory / "node", environment=environment)
        self._stack.enter_context(self.node)
        return self._stack.enter_context(checked_client(base_url=self.node.url))

    def ask(self, method: str, path: str) -> httpx.Response:
        headers = {**JSON, "Authorization": f"Bearer {ROOT}"}
        return httpx.request(method, f"{self.receiver.url}{path}", headers=headers)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


def write(client: httpx.Client) -> int:
    """Append something; returns the last entry of the log then."""
    client.put("/v1/stream/a", headers=TEXT)
    client.post("/v1/stream/a", headers=TEXT, content=b"x").raise_for_status()
    applied: int = client.get("/cluster/status").json()["last_applied"]
    return applied


def reaches(heads: Callable[[], list[bytes]], index: int) -> Callable[[], bool]:
    """Whether the last head, all of which are valid, has an entry."""

    def look() -> bool:
        found = [checked(read_published(one)) for one in heads()]
        assert [one.head.index for one in found] == sorted({one.head.index for one in found})
        return bool(found) and found[-1].head.index >= index

    return look


def metric(client: httpx.Client, name: str) -> dict[str, float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [one for family in families for one in family.samples if one.name == name]
    return {next(iter(one.labels.values())): one.value for one in samples}


def test_heads_are_appended_to_a_file(scene: Scene) -> None:
    file = scene.directory / "heads.jsonl"
    file.write_bytes(b"torn")
    client = scene.publisher(f"file:{file}")
    for _ in range(2):
        index = write(client)
        wait_until(reaches(lambda: file.read_bytes().splitlines()[1:], index), "it is in the file")
    [(target, at_s)] = metric(client, "streamd_heads_published_time_seconds").items()
    assert target == f"file:{file}"
    assert at_s > 1_700_000_000


def test_heads_are_messages_of_a_stream_of_another_cluster(scene: Scene) -> None:
    url = f"{scene.receiver.url}/v1/stream/heads"
    client = scene.publisher(url, TOKEN_FILE=str(scene.directory / "token"))
    index = write(client)
    name = f"publish {scene.receiver.url}"
    failing = "streamd_cold_failing"
    wait_until(lambda: metric(client, failing)[name] == 1, "there is no such stream yet")
    assert client.get("/readyz/cluster").is_success
    wait_until(
        lambda: client.get("/cluster/cold").json()["archive"]["archived_index"] >= index,
        "the archive does not wait",
    )
    assert scene.ask("PUT", "/v1/stream/heads").is_success

    def messages() -> list[bytes]:
        found = scene.ask("GET", "/v1/stream/heads?offset=-1").json()
        return [json.dumps(one).encode() for one in found]

    wait_until(reaches(messages, index), "the stream has the head")
    wait_until(lambda: metric(client, failing)[name] == 0, "it succeeds again")
    assert scene.node.output.count("a task of the cold store fails") == 1
    assert ROOT not in scene.node.output
    (scene.directory / "token").write_text("")
    index = write(client)
    wait_until(lambda: metric(client, failing)[name] == 1, "the token is gone")
    (scene.directory / "token").write_text(ROOT)
    wait_until(reaches(messages, index), "the token is read again")


class Webhook(BaseHTTPRequestHandler):
    """Takes what is posted."""

    taken: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.taken.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *told: object) -> None:
        """Nobody reads it."""


@contextmanager
def webhook(authority: trustme.CA) -> Iterator[str]:
    """The URL of a webhook whose certificate an authority has issued."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with ThreadingHTTPServer(("127.0.0.1", 0), Webhook) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_heads_go_only_to_receivers_that_the_configured_authority_knows(scene: Scene) -> None:
    authority, failing = trustme.CA(), "streamd_cold_failing"
    file = scene.directory / "ca.pem"
    authority.cert_pem.write_to_path(file)
    with webhook(authority) as known, webhook(trustme.CA()) as stranger:
        client = scene.publisher(f"{known}/hook", f"{stranger}/hook", CA=str(file))
        index = write(client)
        wait_until(reaches(lambda: [*Webhook.taken], index), "the webhook has the head")
        wait_until(lambda: metric(client, failing)[f"publish {stranger}"] == 1, "it is refused")
        assert metric(client, failing)[f"publish {known}"] == 0


def test_heads_are_locked_in_a_bucket(scene: Scene, minio: MinioServer) -> None:
    s3 = minio.client()
    s3.make_bucket("heads-locked", object_lock=True)
    client = scene.publisher(
        "s3://heads-locked/prod/",
        LOCK_DAYS="3",
        S3_ENDPOINT=minio.endpoint,
        S3_ACCESS_KEY_ID=minio.access_key_id,
        S3_SECRET_ACCESS_KEY=minio.secret_access_key,
    )

    def heads() -> list[bytes]:
        names = [one.object_name for one in s3.list_objects("heads-locked", recursive=True)]
        return [s3.get_object("heads-locked", name or "").data for name in names]

    index = write(client)
    wait_until(reaches(heads, index), "the bucket has the head")
    [*_, last] = s3.list_objects("heads-locked", recursive=True, include_version=True)
    assert last.object_name is not None
    assert last.object_name.startswith("prod/")
    retention = s3.get_object_retention("heads-locked", last.object_name)
    assert retention is not None
    assert retention.mode == COMPLIANCE
    with pytest.raises(S3Error, match=r"WORM|locked|Object is"):
        s3.remove_object("heads-locked", last.object_name, version_id=last.version_id)


def test_a_bucket_without_locks_is_named(scene: Scene, minio: MinioServer) -> None:
    minio.client().make_bucket("heads-open")
    client = scene.publisher(
        "s3://heads-open",
        LOCK_DAYS="3",
        S3_ENDPOINT=minio.endpoint,
        S3_ACCESS_KEY_ID=minio.access_key_id,
        S3_SECRET_ACCESS_KEY=minio.secret_access_key,
    )
    write(client)
    wait_until(lambda: "ObjectLock" in scene.node.output, "the log says what is missing")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('publish = ["ftp://x"]', r"heads\.publish: 'ftp://x' is not file:/PATH"),
        ('publish = ["file:relative"]', r"heads\.publish: 'file:relative' is not"),
        ('publish = ["https://me:secret@x/"]', r"heads\.publish: 'https://\*\*\*@x/' is not"),
        ('publish = ["s3://B"]', r"heads\.publish: 's3://B' is not"),
        ('publish = ["file:/a", "file:/a"]', r"heads\.publish can have at most 16 targets"),
        ('publish = ["file:/a"]\nlock_days = 1', r"heads\.lock_days needs an s3:// target"),
        ('s3_access_key_id = "x"', r"heads\.s3_access_key_id and s3_secret_access_key must"),
        (
            'publish = ["http://x/"]\ntoken_file = "/t"',
            r"heads\.token_file: http://x/ would get the token without TLS",
        ),
        *(
            (f'publish = ["{target}"]\ntoken_file = "/t"', r"heads\.token_file: .* without TLS")
            for target in (
                "http://localhost.example/",
                "http://127.0.0.1.example/",
                "http://127.0.0.1:1.example/",
                "http://[::1].example/",
            )
        ),
    ],
)
def test_a_wrong_section_is_refused(tmp_path: Path, settings: str, message: str) -> None:
    file = tmp_path / "streamd.toml"
    file.write_text(f'[cold]\nbackend = "fs"\n[heads]\n{settings}\n')
    with pytest.raises(ConfigError, match=message):
        load(file, {}, {})


@pytest.mark.parametrize(
    "target", ["https://x/", "http://localhost:4437/a", "http://127.0.0.1/", "http://[::1]:80/"]
)
def test_a_token_may_go_by_tls_or_to_this_machine(tmp_path: Path, target: str) -> None:
    file = tmp_path / "streamd.toml"
    file.write_text(f'[cold]\nbackend = "fs"\n[heads]\npublish = ["{target}"]\ntoken_file = "/t"\n')
    assert load(file, {}, {}).heads.publish == [target]


def test_heads_need_a_cold_store(tmp_path: Path) -> None:
    file = tmp_path / "streamd.toml"
    file.write_text('[heads]\npublish = ["file:/a"]\n')
    with pytest.raises(ConfigError, match=r"heads\.publish needs a cold store"):
        load(file, {}, {})


@pytest.mark.parametrize("key", ["TOKEN_FILE", pytest.param("CA", marks=pytest.mark.long)])
def test_a_file_that_is_missing_stops_the_start(tmp_path: Path, key: str) -> None:
    environment = {
        **os.environ,
        "STREAMD_COLD_BACKEND": "fs",
        "STREAMD_HEADS_PUBLISH": "https://127.0.0.1/x",
        f"STREAMD_HEADS_{key}": str(tmp_path / "missing"),
    }
    command = [sys.executable, "-m", "streamd", "serve", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(
        [*command, "--listen", "127.0.0.1:0"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert f"heads.{key.lower()}" in done.stderr
