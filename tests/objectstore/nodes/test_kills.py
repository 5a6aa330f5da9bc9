"""A node is killed at each step of its work in the store: before the request reaches the store, and
after the store has done it but before the node knows.

`COLD_STEPS=all` takes every step; otherwise a few represent the others.
"""

from __future__ import annotations

import pytest

from tests.objectstore.nodes.conftest import Make
from tests.objectstore.nodes.running import ALL, ColdServer, command, wait_until
from tests.support.s3_proxy import Moment

pytestmark = pytest.mark.long

FLUSH = [
    (Moment.BEFORE, "PUT", "/packs/"),
    (Moment.BEHIND, "PUT", "/packs/"),
    (Moment.BEFORE, "HEAD", "/packs/"),
    (Moment.BEHIND, "HEAD", "/packs/"),
    (Moment.BEFORE, "GET", "/packs/"),
    # All is read back; nothing is proposed yet.
    (Moment.BEHIND, "GET", "/packs/"),
]
ARCHIVE = [
    (moment, "PUT", about)
    for about in ("/log/", "/pieces/", "/snapshots/")
    for moment in (Moment.BEFORE, Moment.BEHIND)
]
REMOVAL = [
    (moment, "POST", about)
    for about in ("/packs/", "/snapshots/", "/log/")
    for moment in (Moment.BEFORE, Moment.BEHIND)
]
if not ALL:
    FLUSH = [FLUSH[1], FLUSH[-1]]
    ARCHIVE = [ARCHIVE[-1]]
    REMOVAL = REMOVAL[1:2]


def name_of(step: tuple[Moment, str, str]) -> str:
    moment, method, about = step
    return f"{moment.name.lower()} {method} {about.strip('/')}"


def kill_at(server: ColdServer, step: tuple[Moment, str, str], *, drop: bool = False) -> None:
    """Kill the server while one of its requests is at that point, and start it again. A request
    that had not reached the store by then reaches it now, from a dead process, or never."""
    hold = server.proxy.hold(*step)
    server.keep_writing_until(lambda: hold.is_reached)
    server.kill()
    hold.release(drop=drop)
    server.start()


def all_is_well(server: ColdServer) -> None:
    """Everything acknowledged is there, cold; the state and the store agree; there are no
    orphans."""
    server.ledger.write(server.port, 20)
    server.wait_only_cold()
    server.ledger.verify(server.port)
    done = command(server.url, "gc", "--json")
    assert done.returncode == 0, done.stderr
    server.stop()
    server.judge().assert_sound(orphans=False)
    assert server.ledger.counts["acknowledged"] > 50


@pytest.mark.parametrize("step", FLUSH, ids=name_of)
def test_an_interrupted_flush_is_repeated(make: Make, step: tuple[Moment, str, str]) -> None:
    with make() as server:
        server.ledger.write(server.port, 40)
        kill_at(server, step)
        kill_at(server, step, drop=True)
        all_is_well(server)


@pytest.mark.parametrize("step", ARCHIVE, ids=name_of)
def test_an_interrupted_archive_upload_is_repeated(
    make: Make, step: tuple[Moment, str, str]
) -> None:
    with make() as server:
        server.ledger.write(server.port, 40)
        kill_at(server, step)
        all_is_well(server)
        server.start()
        server.wait_archived()


@pytest.mark.parametrize("step", REMOVAL, ids=name_of)
def test_an_interrupted_removal_is_repeated(make: Make, step: tuple[Moment, str, str]) -> None:
    with make() as server:
        server.churn()
        kill_at(server, step)
        all_is_well(server)


@pytest.mark.parametrize(
    "moment", list(Moment) if ALL else [Moment.BEHIND], ids=lambda moment: moment.name.lower()
)
def test_an_interrupted_repacking_is_repeated(make: Make, moment: Moment) -> None:
    # Everything at once into one pack, most of which is deleted then.
    with make(flush_after_ms=3_600_000, pack_bytes=8 * 1024 * 1024) as server:
        server.ledger.write(server.port, 200)
        assert command(server.url, "flush").returncode == 0
        for path in list(server.ledger.streams)[:-1]:
            server.ledger.delete(server.port, path)
        hold = server.proxy.hold(moment, "PUT", "/packs/")
        hold.wait()
        server.kill()
        hold.release()
        server.start()
        wait_until(lambda: server.look()["gc"]["total"]["compacted_packs"] > 0, "it is compacted")
        server.ledger.write(server.port, 20)
        assert command(server.url, "flush").returncode == 0
        server.wait_only_cold()
        server.ledger.verify(server.port)
        assert command(server.url, "gc").returncode == 0
        server.stop()
        server.judge().assert_sound(orphans=False)


@pytest.mark.parametrize("kills", [12 if ALL else 3])
def test_a_node_killed_many_times_loses_nothing(make: Make, kills: int) -> None:
    with make() as server:
        for number in range(kills):
            method, about = ("PUT", "GET", "POST")[number % 3], ("/packs/", "")[number % 2]
            hold = server.proxy.hold(Moment.BEHIND, method, about, passed_over=number % 4)
            server.churn(20)
            server.keep_writing_until(lambda hold=hold: hold.is_reached)
            server.kill()
            hold.release()
            server.start()
        all_is_well(server)
