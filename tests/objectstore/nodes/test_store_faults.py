"""A node whose object store fails in every possible way: nothing is lost, and everything is flushed
in the end."""

from __future__ import annotations

import http.client
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.objectstore.nodes.conftest import Make
from tests.objectstore.nodes.ledger import Ledger, ask
from tests.objectstore.nodes.running import PREFIX, command, wait_until
from tests.support.minio import MinioServer
from tests.support.s3_proxy import Fault

pytestmark = pytest.mark.long

PUTS = (
    Fault.SLOW_DOWN,
    Fault.BAD_GATEWAY,
    Fault.LATE,
    Fault.RESET_IN_BODY,
    Fault.REPLY_LOST,
    Fault.TWICE,
)
GETS = (
    Fault.SLOW_DOWN,
    Fault.LATE,
    Fault.CUT_SHORT,
    Fault.FLIPPED_BIT,
    Fault.FLIPPED_BIT,
    Fault.SHORT_BODY,
)


@pytest.mark.parametrize(
    ("method", "faults"),
    [("PUT", PUTS), ("HEAD", PUTS[:3]), ("GET", GETS)],
    ids=["put", "head", "get"],
)
def test_flushing_continues_after_faults(
    make: Make, method: str, faults: tuple[Fault, ...]
) -> None:
    with make() as server:
        server.proxy.only("/packs/")
        server.proxy.fail(method, *faults)

        def have_struck() -> bool:
            server.ledger.write(server.port, 5)
            return server.proxy.done.total() == len(faults)

        wait_until(have_struck, "the faults have struck")
        server.ledger.write(server.port, 20)
        server.wait_only_cold()
        server.ledger.verify(server.port)
        server.stop()
        server.judge().assert_sound()
    assert set(server.ledger.counts) == {"acknowledged"}


def test_refused_repeated_and_unanswered_deletions_change_nothing(make: Make) -> None:
    faults = [Fault.REPLY_LOST, Fault.TWICE, Fault.SLOW_DOWN]
    with make() as server:
        server.proxy.only("/packs/")
        server.proxy.fail("POST", *faults)
        server.keep_writing_until(lambda: server.proxy.done.total() >= 3)
        server.wait_only_cold()
        server.ledger.verify(server.port)
        assert command(server.url, "gc").returncode == 0
        server.stop()
        server.judge().assert_sound(orphans=False)


def test_a_damaged_answer_never_reaches_a_reader(make: Make) -> None:
    ledger = Ledger()
    # Without a cache, because a cached slice would not be requested again.
    with make(cache_bytes=1) as server:
        ledger.write(server.port, 60)
        server.wait_only_cold()
        server.proxy.only("/packs/")
        for fault in (Fault.CUT_SHORT, Fault.FLIPPED_BIT, Fault.SHORT_BODY, Fault.REPLY_LOST):
            server.proxy.fail("GET", fault)
            ledger.verify(server.port)
            assert server.proxy.done[fault] == 1


def test_bytes_that_stay_damaged_are_an_error_and_never_data(make: Make) -> None:
    ledger = Ledger(streams=1)
    (path,) = ledger.streams
    with make(cache_bytes=1) as server:
        ledger.write(server.port, 30)
        server.wait_only_cold()
        server.proxy.only("/packs/")
        server.proxy.fail_always("GET", Fault.FLIPPED_BIT)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        status, _, body = ask(connection, "GET", f"{path}?offset=-1", {})
        assert status == 500
        assert b"COLD_DATA_DAMAGED" in body
        metrics = ask(connection, "GET", "/metrics", {})[2]
        assert re.search(rb"streamd_cold_total\{what=.damaged_reads.\} [1-9]", metrics)
        server.proxy.heal()
        connection.close()
        ledger.verify(server.port)


def test_readers_get_an_error_when_the_store_does_not_answer(make: Make) -> None:
    ledger = Ledger(streams=1)
    (path,) = ledger.streams
    with make(cache_bytes=1) as server:
        ledger.write(server.port, 30)
        server.wait_only_cold()
        server.proxy.fail_all(Fault.SLOW_DOWN)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        status, headers, body = ask(connection, "GET", f"{path}?offset=-1", {})
        assert status == 503
        assert b"COLD_UNAVAILABLE" in body
        assert int(headers["Retry-After"]) >= 1
        server.proxy.heal()
        ledger.verify(server.port)
        connection.close()


def test_a_reader_who_comes_again_gets_everything_when_the_store_answers(make: Make) -> None:
    ledger = Ledger(streams=1)
    with make(cache_bytes=1) as server, ThreadPoolExecutor(1) as pool:
        ledger.write(server.port, 30)
        server.wait_only_cold()
        server.proxy.fail_all(Fault.SLOW_DOWN)
        verified = pool.submit(ledger.verify, server.port)

        def has_refused() -> bool:
            with urlopen(f"{server.url}/metrics", timeout=20) as metrics:
                return re.search(rb'_requests_total.*"GET".*"503"', metrics.read()) is not None

        try:
            wait_until(has_refused, "a read was refused")
        finally:
            server.proxy.heal()
        verified.result()


def test_writes_continue_during_an_outage_up_to_the_hot_limit(make: Make) -> None:
    ledger = Ledger()
    limit = 200_000
    with make(hot_limit_bytes=limit) as server:
        ledger.write(server.port, 50, size=1000)
        server.wait_drained()
        server.proxy.fail_all(Fault.SLOW_DOWN)
        before = ledger.acknowledged_bytes

        def is_full() -> bool:
            ledger.write(server.port, 20, size=5000)
            return ledger.counts["refused"] > 0

        wait_until(is_full, "appends are refused")
        assert ledger.acknowledged_bytes - before > limit * 0.8
        answer = server.look()
        assert answer["backpressure"]
        assert answer["hot_bytes"] > limit
        wait_until(lambda: server.look()["last_error"] is not None, "why is told")
        ledger.verify(server.port)
        # A restart in the midst of it changes nothing.
        server.kill()
        server.proxy.heal()
        server.proxy.fail_all(Fault.BAD_GATEWAY)
        server.start()
        refused = ledger.counts["refused"]
        ledger.write(server.port, 3)
        assert ledger.counts["refused"] == refused + 3, "the limit outlives a restart"
        server.proxy.heal()
        server.wait_cold()
        assert server.look()["backpressure"] is None
        ledger.write(server.port, 20)
        assert ledger.counts["refused"] == refused + 3
        server.wait_only_cold()
        ledger.verify(server.port)
        server.stop()
        server.judge().assert_sound()


def test_a_slow_store_delays_no_append(make: Make) -> None:
    ledger = Ledger()
    with make() as server:
        # As slow as may be without being cut off.
        server.proxy.slow_s = 0.7
        server.proxy.fail_all(Fault.SLOW)
        ledger.write(server.port, 200)
        assert ledger.counts["acknowledged"] == 200
        server.wait_drained()
        server.proxy.heal()
        server.wait_only_cold()
        ledger.verify(server.port)


def test_a_deleted_bucket_that_is_created_again_is_used(
    make: Make, minio: MinioServer, bucket: str, tmp_path: Path
) -> None:
    ledger = Ledger()
    with make(cache_bytes=1) as server:
        ledger.write(server.port, 50)
        server.wait_only_cold()
        place = minio.directory / bucket
        shutil.move(place, tmp_path / "away")
        ledger.write(server.port, 50)
        wait_until(lambda: server.look()["last_error"] is not None, "why nothing is flushed")
        assert "cold.s3_bucket" in server.look()["last_error"]["message"]
        assert ledger.counts["acknowledged"] == 100
        shutil.move(tmp_path / "away", place)
        server.wait_only_cold()
        ledger.verify(server.port)
        server.stop()
        server.judge().assert_sound()


def test_a_node_starts_without_its_store_and_waits_for_it(make: Make) -> None:
    ledger = Ledger()
    with make() as server:
        ledger.write(server.port, 50)
        server.kill()
        server.proxy.fail_all(Fault.SLOW_DOWN)
        server.start()
        ledger.write(server.port, 50)
        assert ledger.counts["acknowledged"] == 100
        server.proxy.heal()
        server.wait_only_cold()
        ledger.verify(server.port)


def test_a_killed_store_keeps_flushed_bytes(make: Make, minio: MinioServer) -> None:
    ledger = Ledger()
    with make(cache_bytes=1) as server:
        for _ in range(2):
            ledger.write(server.port, 50)
            minio.kill()
            ledger.write(server.port, 50)
            minio.start()
            server.wait_only_cold()
            ledger.verify(server.port)
        server.stop()
        server.judge().assert_sound()


def test_an_operator_flushes_and_reads_the_status(
    make: Make, minio: MinioServer, bucket: str
) -> None:
    ledger = Ledger()
    with make(flush_after_ms=3_600_000, pack_bytes=8 * 1024 * 1024) as server:
        ledger.write(server.port, 50)
        assert server.look()["hot_bytes"] == ledger.acknowledged_bytes
        shown = command(server.url, "status")
        assert shown.returncode == 0, shown.stderr
        assert bucket in shown.stdout
        done = command(server.url, "flush")
        assert done.returncode == 0, done.stderr
        assert server.look()["hot_bytes"] == 0
        server.wait_only_cold()
        ledger.verify(server.port)
        server.proxy.fail_all(Fault.SLOW_DOWN)
        ledger.write(server.port, 10)
        late = command(server.url, "flush", "--timeout", "3")
        assert late.returncode == 1
        assert "not done within 3 s" in late.stderr
        server.proxy.heal()
        done = command(server.url, "gc", "--json")
        assert done.returncode == 0, done.stderr
        names = [found.object_name for found in minio.client().list_objects(bucket, PREFIX)]
        assert names
