"""The drill: a cluster under load loses all its disks, and is restored from the cold store."""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.jepsen_like.cluster_processes import (
    ClusterProcesses,
    NodeProcess,
    add_voter,
    status_of,
    wait_until,
)
from tests.objectstore.nodes.ledger import read_whole
from tests.support import tether
from tests.support.minio import MinioServer, minio_or_skip
from tests.support.repeating import served

pytestmark = pytest.mark.long

WRITERS = 6
BUCKET = "drill"
PLACE = f"s3://{BUCKET}/some/where"
LOAD_S = 6.0
RECORD_BYTES = 512


class Recording(NamedTuple):
    """All streams as they were while the writers paused."""

    index: int  # type: ignore[assignment]  # of NamedTuple
    time_ms: int
    content: dict[str, bytes]


class Load:
    """Writers with a stream each, which append numbered records one after the other."""

    def __init__(self, nodes: list[NodeProcess]) -> None:
        self._nodes = nodes
        self._stop = threading.Event()
        self._pause = threading.Lock()
        self._busy = [threading.Lock() for _ in range(WRITERS)]
        # The offset after each acknowledged record, by stream.
        self.acknowledged: list[list[str]] = [[] for _ in range(WRITERS)]
        # The acknowledged records when the log was committed up to an index at least.
        self.checkpoints: list[tuple[int, list[int]]] = []
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def note(self, leader: NodeProcess) -> None:
        """Record the acknowledged records by now, and the commit index."""
        counts = [len(offsets) for offsets in self.acknowledged]
        status = leader.status()
        if status is not None and status["role"] == "leader":
            self.checkpoints.append((status["commit_index"], counts))

    def record(self, leader: NodeProcess) -> Recording:
        """Pause all writers, and record everything."""
        with self._pause:
            for lock in self._busy:
                with lock:
                    pass
            content = {f"w{number}": read(leader, f"w{number}") for number in range(WRITERS)}
            index = status_of(leader)["last_applied"]
            time_ms = time.time_ns() // 1_000_000
            assert status_of(leader)["last_applied"] >= index
            # Later appends have a later millisecond.
            wait_until(lambda: time.time_ns() // 1_000_000 > time_ms, "the next millisecond")
            return Recording(index, time_ms, content)

    def _write(self, number: int) -> None:
        node = self._nodes[number % len(self._nodes)]
        connection = http.client.HTTPConnection("127.0.0.1", node.client_port, timeout=20)
        headers = {"Content-Type": "text/plain"}
        path = f"/v1/stream/w{number}"
        status, _ = served(lambda: exchange(connection, "PUT", path, None, headers))
        assert status in (200, 201)
        sent = 0
        while not self._stop.is_set():
            with self._pause:
                self._busy[number].acquire()
            try:
                status, offset = exchange(connection, "POST", path, numbered(sent), headers)
            except (OSError, http.client.HTTPException):
                return  # the node was killed
            finally:
                self._busy[number].release()
            if status != 204:
                return
            self.acknowledged[number].append(offset)
            sent += 1


def exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
) -> tuple[int, str]:
    connection.request(method, path, body, dict(headers))
    response = connection.getresponse()
    response.read()
    return response.status, response.headers.get("Stream-Next-Offset", "")


def numbered(number: int) -> bytes:
    return f"{number:08d}".encode() * (RECORD_BYTES // 8)


def read(node: NodeProcess, stream: str, offset: str = "-1") -> bytes:
    """All of a stream from an offset on."""
    connection = http.client.HTTPConnection("127.0.0.1", node.client_port, timeout=30)
    with closing(connection):
        return read_whole(connection, f"/v1/stream/{stream}", offset)[0]


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(minio_or_skip(), tmp_path_factory.mktemp("minio") / "data") as server:
        server.client().make_bucket(BUCKET)
        yield server


def cold_environment(minio: MinioServer) -> dict[str, str]:
    return {
        "STREAMD_COLD_BACKEND": "s3",
        "STREAMD_COLD_S3_BUCKET": BUCKET,
        "STREAMD_COLD_S3_PREFIX": "some/where",
        "STREAMD_COLD_S3_ENDPOINT": minio.endpoint,
        "STREAMD_COLD_S3_ACCESS_KEY_ID": minio.access_key_id,
        "STREAMD_COLD_S3_SECRET_ACCESS_KEY": minio.secret_access_key,
        "STREAMD_COLD_FLUSH_AFTER_MS": "700",
        "STREAMD_COLD_PACK_BYTES": "65536",
        "STREAMD_COLD_HOT_KEEP_BYTES": "1",
    }


def streamd(environment: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
    return tether.start(
        [sys.executable, "-m", "streamd", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process: subprocess.Popen[str]) -> Any:
    """Its JSON, once it has succeeded."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, (output, errors)
    return json.loads(output)


def restore_in_pieces(environment: Mapping[str, str], data_dir: Path, *arguments: str) -> Any:
    """Restore, killed each time a little later, until it finishes first."""
    command = ("restore", "--from", PLACE, "--data-dir", str(data_dir), "--json", *arguments)
    for tenths in range(6, 16, 2):
        process = streamd(environment, *command)
        try:
            process.wait(timeout=tenths / 10)
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
    return done(streamd(environment, *command))


def test_a_cluster_that_lost_all_disks_is_restored(tmp_path: Path, minio: MinioServer) -> None:
    environment = cold_environment(minio)
    with ClusterProcesses(tmp_path, environment=environment, proxied=False) as cluster:
        leader = cluster.leader()
        with Load(list(cluster.nodes.values())) as load:
            recording = under_load(cluster, load, leader)
            for node in cluster.nodes.values():
                node.kill()
        for node in cluster.nodes.values():
            shutil.rmtree(node.data_dir)

        newcomer = cluster.prepare(4)
        lost = archived_cluster(newcomer.environment)
        restored = restore_in_pieces(newcomer.environment, newcomer.data_dir, "--fence", lost)
        assert restored["packs"] > 0
        newcomer.start()
        cluster.wait_ready([4])
        check_acknowledged(newcomer, load, restored["last_index"])
        check_old_times(tmp_path, cluster, recording, restored["former_cluster_id"])
        add_voter(cluster, 5, newcomer)
        add_voter(cluster, 6, newcomer)
        wanted = read(newcomer, "w0")
        assert all(read(cluster.nodes[node_id], "w0") == wanted for node_id in (5, 6))
        wait_until(
            lambda: is_archived(newcomer.environment, restored["cluster_id"]),
            "the restored cluster is archived itself",
        )


def under_load(cluster: ClusterProcesses, load: Load, leader: NodeProcess) -> Recording:
    """Let it run for a while, transfer leadership in between, record everything once."""
    recording = None
    end = time.monotonic() + LOAD_S
    while time.monotonic() < end:
        load.note(leader)
        if recording is None and time.monotonic() > end - LOAD_S / 2:
            recording = load.record(leader)
            status, _ = leader.post("/cluster/transfer")
            assert status == 200
            leader = cluster.leader()
        threading.Event().wait(0.05)  # the pace of the observer, not a wait for anything
    assert recording is not None
    return recording


def check_acknowledged(node: NodeProcess, load: Load, last_index: int) -> None:
    """Each record that was acknowledged before the archived index is there, at its offset, once."""
    covered = [counts for index, counts in load.checkpoints if index <= last_index]
    assert len(covered) > len(load.checkpoints) / 2, "hardly anything was archived in time"
    for number, count in enumerate(covered[-1]):
        content = read(node, f"w{number}")
        kept = len(content) // RECORD_BYTES
        assert kept >= count > 0
        assert content == b"".join(numbered(one) for one in range(kept)), f"w{number}"
        offsets = load.acknowledged[number]
        for one in random.Random(number).sample(range(1, count), 10):
            assert read(node, f"w{number}", offsets[one - 1])[:8] == numbered(one)[:8]


def check_old_times(
    tmp_path: Path, cluster: ClusterProcesses, recording: Recording, cluster_id: str
) -> None:
    """A restore up to an entry or a time gives exactly what was recorded."""
    for name, point in (
        ("index", ("--index", str(recording.index))),
        ("time", ("--at", str(recording.time_ms))),
    ):
        node = NodeProcess(9, tmp_path / name, cluster.nodes[4].environment)
        node.log_path.parent.mkdir()
        node.environment |= {
            "STREAMD_SERVER_DATA_DIR": str(node.data_dir),
            "STREAMD_SERVER_LISTEN": f"127.0.0.1:{node.client_port}",
            "STREAMD_CLUSTER_LISTEN": f"127.0.0.1:{node.peer_port}",
            "STREAMD_SERVER_NODE_ID": "9",
        }
        arguments = ("--cluster", cluster_id, "--fence", cluster_id, *point)
        process = streamd(
            node.environment,
            *("restore", "--from", PLACE, "--data-dir", str(node.data_dir), "--json", *arguments),
        )
        told = done(process)
        assert told["last_index"] >= recording.index if name == "time" else True
        node.start()
        try:
            wait_until(node.is_ready, f"the node restored by {name}")
            content = {stream: read(node, stream) for stream in recording.content}
            assert content == recording.content, name
        finally:
            node.kill()


def archived_cluster(environment: Mapping[str, str]) -> str:
    """The id of the one cluster in the store."""
    (told,) = done(streamd(environment, "backup", "status", "--from", PLACE, "--json"))
    return str(told["cluster_id"])


def is_archived(environment: Mapping[str, str], cluster_id: str) -> bool:
    process = streamd(
        environment, "backup", "status", "--from", PLACE, "--cluster", cluster_id, "--json"
    )
    output, _ = process.communicate(timeout=60)
    return process.returncode == 0 and bool(json.loads(output)[0]["ranges"])
