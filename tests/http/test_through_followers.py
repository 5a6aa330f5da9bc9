"""Buckets, conditions and batches at every node of a cluster of processes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.wire import checked_client

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
BATCH = b"".join(struct.pack(">I", len(part)) + part for part in (b"one", b"two"))


def test_every_node_answers_listings_conditions_and_batches_alike(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, proxied=False) as cluster:
        urls = [node.url for node in cluster.nodes.values()]
        with checked_client(timeout=20.0) as client:
            for turn, (here, there) in enumerate(zip(urls, urls[1:] + urls[:1], strict=True)):
                bucket = f"bucket-{turn}"
                assert client.put(f"{here}/{bucket}").status_code == 201
                made = client.put(f"{there}/{bucket}/s", headers=TEXT)
                assert made.status_code == 201
                tag = made.headers["etag"]
                for url in urls:
                    assert client.head(f"{url}/{bucket}/s").headers["etag"] == tag
                    [listed] = client.get(f"{url}/{bucket}/streams").json()["streams"]
                    assert listed["stream_id"] == "s"
                path = f"/{bucket}/s/append-batch"
                condition = {**TEXT, "If-Match": tag}
                answer = client.post(here + path, headers=condition, content=BATCH)
                assert answer.json()["records"] == 2
                for url in urls:
                    refused = client.post(url + path, headers=condition, content=BATCH)
                    assert refused.status_code == 412
                    assert refused.headers["etag"] == answer.headers["etag"]
                    [listed] = client.get(f"{url}/{bucket}/streams").json()["streams"]
                    assert listed["next_offset"] == answer.headers["stream-next-offset"]
                assert client.delete(f"{here}/{bucket}").status_code == 409
                current = {"If-Match": answer.headers["etag"]}
                assert client.delete(f"{there}/{bucket}/s", headers=current).status_code == 204
                assert client.delete(f"{here}/{bucket}").status_code == 204
                assert {client.get(f"{url}/{bucket}/streams").status_code for url in urls} == {404}


@pytest.mark.long
def test_a_fork_made_at_a_lagging_node_takes_its_body_as_its_source_would(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, proxied=False) as cluster:
        urls = [node.url for node in cluster.nodes.values()]
        with checked_client(timeout=20.0) as client:
            for turn in range(60):
                here, there = urls[turn % 3], urls[(turn + 1 + turn // 3 % 2) % 3]
                source = f"/v1/stream/source-{turn}"
                fork = f"/v1/stream/fork-{turn}"
                assert client.put(here + source, headers=JSON, content=b"[1,2]").status_code == 201
                headers = {"Stream-Forked-From": source}
                made = client.put(there + fork, headers=headers, content=b"[3,4]")
                assert made.status_code == 201
                assert client.get(there + fork).json() == [1, 2, 3, 4]
