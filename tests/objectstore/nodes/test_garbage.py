"""What garbage collection removes from the store, and what it keeps."""

from __future__ import annotations

import http.client

import pytest
from minio import Minio

from tests.objectstore.nodes.conftest import Make
from tests.objectstore.nodes.ledger import TEXT, Ledger, ask, read_whole
from tests.objectstore.nodes.running import PREFIX, ColdServer, command, wait_until
from tests.support.minio import MinioServer

pytestmark = pytest.mark.long


def packs_in(client: Minio, bucket: str) -> set[str]:
    found = client.list_objects(bucket, PREFIX, recursive=True)
    return {str(one.object_name) for one in found if "/packs/" in str(one.object_name)}


def pass_rounds(server: ColdServer, count: int = 5) -> None:
    """Wait for several rounds of removal, with the grace period in between."""
    for _ in range(count):
        done = command(server.url, "gc")
        assert done.returncode == 0, done.stderr


def request(server: ColdServer, method: str, path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, _, _ = ask(connection, method, path, {**TEXT, **named})
    connection.close()
    return status


def whole(server: ColdServer, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    content, _ = read_whole(connection, path)
    connection.close()
    return content


def test_a_fork_keeps_the_records_of_a_deleted_source(
    make: Make, minio: MinioServer, bucket: str
) -> None:
    with make() as server:
        server.ledger.write(server.port, 60)
        server.wait_drained()
        path = next(iter(server.ledger.streams))
        content = whole(server, path)
        fork = "/v1/stream/ledger/fork"
        assert request(server, "PUT", fork, Stream_Forked_From=path) == 201
        server.ledger.delete(server.port, path)
        server.wait_only_cold()
        pass_rounds(server)
        assert whole(server, fork) == content
        # Everything is removed with its last reader; live slices of its packs are moved.
        assert request(server, "DELETE", fork) == 204
        for other in list(server.ledger.streams):
            server.ledger.delete(server.port, other)

        server.ledger = Ledger(bucket="later")
        before = packs_in(minio.client(), bucket)
        # Restore points are removed for newer ones, which need new entries.
        server.keep_writing_until(lambda: not before & packs_in(minio.client(), bucket))


def test_objects_that_a_restore_may_need_are_kept(
    make: Make, minio: MinioServer, bucket: str
) -> None:
    with make(archive_retention_hours=1) as server:
        server.ledger.write(server.port, 60)
        server.wait_drained()
        for path in list(server.ledger.streams):
            server.ledger.delete(server.port, path)
        wait_until(lambda: server.look()["dead_packs"] > 0, "a pack is dead")
        before = packs_in(minio.client(), bucket)
        pass_rounds(server)
        assert server.look()["dead_packs"] > 0
        assert before
        assert packs_in(minio.client(), bucket) >= before
