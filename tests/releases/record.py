"""Make this checkout's server write a history, and keep its data directory as a release's.

Run as a program, with the name of the release. The server is killed in the middle of its work: what
a later version has to open is not always what was tidied up. Three nodes of a cluster are recorded
as well: only they have other nodes' packages in their logs, and sessions in their states.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.server_process import ServerProcess

HERE = Path(__file__).parent
CONFIG = """
[cold]
backend = "fs"
flush_after_ms = 500
hot_keep_bytes = 1
snapshot_interval_minutes = 1
"""
_STREAMS = (
    ("demo/text", "text/plain"),
    ("demo/bytes", "application/octet-stream"),
    ("demo/json", "application/json"),
    ("demo/closed", "text/plain"),
    ("demo/producer", "text/plain"),
    ("demo/snapshots", "application/json"),
    ("other/window", "text/plain"),
)
CLUSTER_STREAMS = ("demo/one", "demo/two")
PRODUCER = {"Producer-Id": "p", "Producer-Epoch": "3"}
_DEADLINE_S = 60.0


def content_of(client: httpx.Client, stream: str) -> dict[str, Any]:
    """A stream's metadata and content, read from its earliest offset to its tail."""
    digest = sha256()
    offset, size = "-1", 0
    while True:
        answer = client.get(f"/{stream}", params={"offset": offset})
        if answer.status_code == 410:
            offset = answer.headers["Stream-Earliest-Offset"]
            continue
        if answer.status_code != 200:
            return {"status": answer.status_code}
        if answer.headers["Content-Type"] == "application/json":
            for message in answer.json():
                digest.update(json.dumps(message, sort_keys=True).encode() + b"\n")
                size += 1
        else:
            digest.update(answer.content)
            size += len(answer.content)
        offset = answer.headers["Stream-Next-Offset"]
        if "Stream-Up-To-Date" in answer.headers:
            break
    return {
        "status": 200,
        "type": answer.headers["Content-Type"],
        "closed": answer.headers.get("Stream-Closed"),
        "tail": offset,
        "size": size,
        "sha256": digest.hexdigest(),
    }


def _write(client: httpx.Client, random: Random, rounds: int) -> None:
    for number in range(rounds):
        for stream, kind in _STREAMS:
            if stream in ("demo/closed", "demo/producer"):
                continue
            payload = random.randbytes(150).hex() + f" {number}"
            body = json.dumps([{"n": number, "p": payload}, number]) if "json" in kind else payload
            _post(client, stream, kind, body)


def _post(client: httpx.Client, stream: str, kind: str, body: str, **headers: str) -> None:
    answer = client.post(f"/{stream}", content=body, headers={"Content-Type": kind, **headers})
    assert answer.status_code in (200, 204), (stream, answer.status_code, answer.text)


def _create(client: httpx.Client, stream: str, kind: str, **headers: str) -> httpx.Headers:
    answer = client.put(f"/{stream}", headers={"Content-Type": kind, **headers})
    assert answer.status_code == 201, (stream, answer.status_code, answer.text)
    return answer.headers


def _history(client: httpx.Client) -> None:
    random = Random(9319)
    for bucket in ("demo", "other"):
        assert client.put(f"/{bucket}").status_code == 201
    for stream, kind in _STREAMS:
        ttl = {"Stream-TTL": "2000000000"} if stream == "other/window" else {}
        _create(client, stream, kind, **ttl)
    _write(client, random, 20)
    _post(client, "demo/closed", "text/plain", "the end", **{"Stream-Closed": "true"})
    for seq in range(3):
        _post(
            client,
            "demo/producer",
            "text/plain",
            f"<{seq}>",
            **PRODUCER,
            **{"Producer-Seq": f"{seq}"},
        )
    tail = client.head("/demo/text").headers["Stream-Next-Offset"]
    source = {"Stream-Forked-From": "/demo/text", "Stream-Fork-Offset": tail}
    _create(client, "demo/fork", "text/plain", **source)
    _post(client, "demo/fork", "text/plain", "only in the fork")
    _create(client, "demo/gone", "text/plain")
    _post(client, "demo/gone", "text/plain", "x" * 500)
    assert client.delete("/demo/gone").status_code == 204
    at = client.head("/demo/snapshots").headers["Stream-Next-Offset"]
    published = client.put(
        f"/demo/snapshots/snapshot/{at}",
        content=b'{"state":1}' * 50,
        headers={"Content-Type": "application/json"},
    )
    assert published.status_code in (200, 201, 204), published.text


def _archived(client: httpx.Client) -> None:
    """Wait until everything written so far is in the cold store, the log and a state too."""
    deadline = time.monotonic() + 180
    with_packs = 0  # an entry after packs exist, so that a later state refers to them
    client.post("/cluster/cold/flush", json={}).raise_for_status()
    while time.monotonic() < deadline:
        cold = client.get("/cluster/cold").json()
        archive = cold["archive"]
        # The entry that records the archive's growth is never archived itself.
        if cold["packs"] and not with_packs:
            with_packs = client.get("/cluster/status").json()["commit_index"]
        state = archive["last_snapshot"] or {"index": 0}
        if archive["lag_entries"] <= 2 and with_packs and state["index"] >= with_packs:
            return
        time.sleep(0.5)  # run by an operator, not by tests
    raise SystemExit(f"not archived in time: {cold}")


def record(name: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "streamd.toml"
        config.write_text(CONFIG)
        data = Path(scratch) / "data"
        server = ServerProcess(data, flags=("--config", str(config)))
        with server, httpx.Client(base_url=server.url, timeout=_DEADLINE_S) as client:
            _history(client)
            _archived(client)
            _write(client, Random(1), 3)
            streams = [name for name, _ in _STREAMS] + ["demo/fork", "demo/gone"]
            told = {stream: content_of(client, stream) for stream in streams}
            server.kill()
        with tarfile.open(HERE / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(data, arcname="data")
        (HERE / f"{name}.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")


def record_cluster(name: str) -> None:
    """Every node takes writes, so that those of the followers travel in packages; a state is
    stored and the log cut in between, so that a restart needs both."""
    with tempfile.TemporaryDirectory() as scratch:
        with recorded_cluster(Path(scratch)) as cluster:
            for client in _clients(cluster):
                with client:
                    _write_through(client, 20)
            status, answer = cluster.leader().post("/cluster/snapshot")
            assert status == 200, answer
            for client in _clients(cluster):
                with client:
                    _write_through(client, 5)
                    told = {stream: content_of(client, stream) for stream in CLUSTER_STREAMS}
            for node in cluster.nodes.values():
                node.kill()
        with tarfile.open(HERE / f"{name}.cluster.tar.xz", "w:xz") as archive:
            for node_id in cluster.nodes:
                archive.add(Path(scratch) / f"node{node_id}", arcname=f"node{node_id}")
        text = json.dumps(told, indent=1, sort_keys=True) + "\n"
        (HERE / f"{name}.cluster.json").write_text(text)


def recorded_cluster(directory: Path) -> ClusterProcesses:
    """Nodes at the peer addresses of the recorded logs; nothing else uses these."""
    cluster = ClusterProcesses(directory, proxied=False)
    addresses = {node_id: f"127.94.19.{node_id}:4447" for node_id in cluster.nodes}
    for node_id, node in cluster.nodes.items():
        node.environment["STREAMD_CLUSTER_LISTEN"] = addresses[node_id]
        node.environment["STREAMD_CLUSTER_ROUTES"] = ",".join(addresses.values())
    return cluster


def _clients(cluster: ClusterProcesses) -> list[httpx.Client]:
    return [httpx.Client(base_url=node.url, timeout=_DEADLINE_S) for node in cluster.nodes.values()]


def _write_through(client: httpx.Client, rounds: int) -> None:
    for bucket in {stream.partition("/")[0] for stream in CLUSTER_STREAMS}:
        assert client.put(f"/{bucket}").status_code in (201, 409)
    for stream in CLUSTER_STREAMS:
        answer = client.put(f"/{stream}", headers={"Content-Type": "text/plain"})
        assert answer.status_code in (200, 201), answer.text
    for number in range(rounds):
        for stream in CLUSTER_STREAMS:
            _post(client, stream, "text/plain", f"{number} through {client.base_url.port}\n")


if __name__ == "__main__":
    record(sys.argv[1])
    record_cluster(sys.argv[1])
