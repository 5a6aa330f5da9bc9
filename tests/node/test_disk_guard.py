"""Writes are refused before the disk is full, and taken again when there is room."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from streamd.config.settings import StorageConfig
from streamd.group.proposals import (
    DiskLow,
    Proposal,
    Unavailable,
    decode_answers,
    encode_proposals,
    outcome_in,
)
from streamd.hosts.inspection.disks import DiskSpace
from streamd.node.disk_guard import DiskGuard
from streamd.node.node import Node
from streamd.process.metrics import Metrics
from streamd.streams.commands import Delete, Result
from tests.sim.runtime import run_virtually
from tests.support.machines import Machines, all_ready, play
from tests.support.mounts import tmpfs
from tests.support.nodes import append, append_to, create, key, read_all, running_node
from tests.support.server_process import ServerProcess

_MIB = 1024 * 1024
_TEXT = {"Content-Type": "text/plain"}


class Disk:
    """A file system whose free space a test sets."""

    def __init__(self, free: int, total: int = 10**12) -> None:
        self.free = free
        self.total = total
        self.fails = False
        self.unstored = 0
        self.looks = 0

    def space(self, _: Path) -> DiskSpace:
        self.looks += 1
        if self.fails:
            raise OSError("the file server does not answer")
        return DiskSpace(self.free, self.total)

    def guard(self, node: Node, min_free_bytes: int | None) -> DiskGuard:
        return DiskGuard(
            node.group.admission,
            Path("data"),
            StorageConfig(min_free_bytes=min_free_bytes),
            log_growth=node.group.storage.log_growth,
            unstored_bytes=lambda: self.unstored,
            run_blocking=node.run_blocking,
            space=self.space,
        )


async def test_while_the_disk_is_low_nothing_with_bytes_is_proposed(tmp_path: Path) -> None:
    disk = Disk(free=1000)
    async with running_node(tmp_path) as node:
        guard = disk.guard(node, 1000)
        await node.group.writes.propose(create("a"))
        await node.group.writes.propose(create("b"))
        await guard.look()
        assert (await append_to(node, "a", b"1")).result is Result.APPENDED
        disk.free = 999
        await guard.look()
        assert guard.report() == {"free_bytes": 999, "min_free_bytes": 1000, "low": True}
        metrics = Metrics()
        guard.export(metrics)
        for sample in (b"free_bytes 999.0", b"min_free_bytes 1000.0", b"low 1.0"):
            assert b"\nstreamd_disk_" + sample + b"\n" in metrics.exposition()
        before = node.group.view.last_index
        with pytest.raises(DiskLow):
            await node.group.writes.propose(append("a", b"2"))
        assert node.group.view.last_index == before
        assert await read_all(node, "a") == b"1"
        assert (await node.group.writes.propose(Delete(key("b")))).result is Result.DELETED


async def test_writes_are_taken_again_with_an_eighth_more_room(tmp_path: Path) -> None:
    disk = Disk(free=999)
    async with running_node(tmp_path) as node:
        guard = disk.guard(node, 1000)
        await guard.look()
        for free, is_low in ((1000, True), (1124, True), (1125, False), (1000, False), (999, True)):
            disk.free = free
            await guard.look()
            assert guard.is_low == is_low, free


async def test_what_was_accepted_and_is_not_stored_yet_counts_as_used_twice(tmp_path: Path) -> None:
    disk = Disk(free=2000)
    async with running_node(tmp_path) as node:
        guard = disk.guard(node, 1000)
        for disk.unstored, is_low in ((500, False), (501, True), (438, True), (437, False)):
            await guard.look()
            assert guard.is_low == is_low, disk.unstored
        assert guard.free_bytes == 2000


async def test_much_that_is_written_has_the_disk_looked_at_before_its_time(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """No time passes in this test."""
    disk = Disk(free=10**9)
    async with running_node(tmp_path) as node, trio.open_nursery() as nursery:
        guard = disk.guard(node, 160_000)
        await guard.look()
        nursery.start_soon(guard.watch)
        await node.group.writes.propose(create("a"))
        looks = disk.looks
        disk.free = 0
        for _ in range(9):
            await append_to(node, "a", b"x" * 1000)
        assert not guard.is_low
        while not guard.is_low:
            with suppress(DiskLow):
                await append_to(node, "a", b"x" * 1000)
            await wait_all_tasks_blocked()
        assert disk.looks == looks + 1
        nursery.cancel_scope.cancel()


async def test_a_disk_that_cannot_be_looked_at_changes_nothing(tmp_path: Path) -> None:
    disk = Disk(free=999)
    async with running_node(tmp_path) as node:
        guard = disk.guard(node, 1000)
        await guard.look()
        disk.fails = True
        await guard.look()
        assert guard.is_low
        assert guard.free_bytes is None


@pytest.mark.parametrize(
    ("configured", "total", "expected"),
    [
        (None, 10**12, 256 * _MIB),
        (None, 160 * _MIB, 10 * _MIB),
        (5, 160 * _MIB, 5),
        (200 * _MIB, 160 * _MIB, 200 * _MIB),
    ],
)
async def test_the_default_suits_small_file_systems(
    configured: int | None, total: int, expected: int, tmp_path: Path
) -> None:
    async with running_node(tmp_path) as node:
        guard = Disk(free=10**9, total=total).guard(node, configured)
        await guard.look()
        assert guard.min_free_bytes == expected


def test_in_a_cluster_the_disk_of_the_leader_decides(tmp_path: Path) -> None:
    async def scenario(machines: Machines) -> None:
        leader, second, third = await all_ready(machines)
        await leader.node.group.writes.propose(create("a"))
        for follower in (second, third):
            await Disk(free=0).guard(follower.node, 1).look()
        assert (await append_to(second.node, "a", b"1")).result is Result.APPENDED

        low = Disk(free=0)
        guard = low.guard(leader.node, 1)
        await guard.look()
        for node in (leader.node, second.node):
            with pytest.raises(DiskLow):
                await node.group.writes.propose(append("a", b"2"))
        low.free = 10
        await guard.look()
        assert (await append_to(second.node, "a", b"3")).result is Result.APPENDED
        low.free = 0
        await guard.look()
        assert (await second.node.group.writes.propose(Delete(key("a")))).result is Result.DELETED

    run_virtually(1, partial(play, scenario, tmp_path))


def test_a_node_without_sessions_learns_the_reason_as_well(tmp_path: Path) -> None:
    async def scenario(machines: Machines) -> None:
        leader, _, _ = await all_ready(machines)
        await leader.node.group.writes.propose(create("a"))
        await Disk(free=0).guard(leader.node, 1).look()
        wanted = [Proposal([append("a", b"x")], 1, 0.0), Proposal([Delete(key("a"))], 0, 0.0)]
        answer = await leader.node.group.admission.propose_forwarded(encode_proposals(wanted))
        refused, deleted = decode_answers(answer)
        with pytest.raises(Unavailable) as raised:
            outcome_in(refused)
        assert type(raised.value) is DiskLow
        assert outcome_in(deleted).result is Result.DELETED

    run_virtually(1, partial(play, scenario, tmp_path))


# -- on a real file system --------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    with tmpfs(tmp_path / "disk", "64m") as directory:
        yield directory


def _until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def _metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith(f"streamd_{name} ")]
    return float(value)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_disk_that_fills_up_refuses_writes_serves_reads_and_recovers(
    workers: int, disk: Path
) -> None:
    variables = {"STREAMD_STORAGE_MIN_FREE_BYTES": str(24 * _MIB)}
    flags = ["--workers", str(workers)]
    with (
        ServerProcess(disk / "data", environment=variables, flags=flags) as server,
        httpx.Client(base_url=server.url, headers=_TEXT, timeout=30) as client,
    ):
        assert client.put("/v1/stream/kept").status_code == 201
        assert client.put("/v1/stream/cleared", content=b"c" * 100_000).status_code == 201
        kept = 0
        # Somebody else takes the rest of the disk, all but a little.
        other = disk / "other"
        with other.open("wb") as file:
            file.write(bytes(26 * _MIB))

        def is_nearly_full() -> bool:
            """Whether a write is refused, and not only until what was accepted is stored."""
            nonlocal kept
            while (answer := client.post("/v1/stream/kept", content=b"k" * 100_000)).is_success:
                kept += 1
                assert kept < 500, "the disk is smaller than that"
            assert (answer.status_code, answer.json()["error"]["code"]) == (507, "DISK_LOW")
            disk = client.get("/cluster/status").json()["disk"]
            return bool(disk["low"] and disk["free_bytes"] < 26 * _MIB)

        _until(is_nearly_full)
        assert client.put("/v1/stream/new", content=b"n").status_code == 507
        assert _metric(client, "disk_low") == 1
        assert client.get("/cluster/status").json()["disk"]["min_free_bytes"] == 24 * _MIB
        read = client.get("/v1/stream/kept?offset=-1&max_bytes=1000")
        assert read.status_code == 200
        assert client.delete("/v1/stream/cleared").status_code == 204

        other.unlink()
        _until(lambda: client.post("/v1/stream/kept", content=b"k" * 100_000).status_code == 204)
        assert _metric(client, "disk_low") == 0
        assert _metric(client, "disk_free_bytes") > 24 * _MIB
        assert server.stop() == 0
    with ServerProcess(disk / "data", environment=variables) as server:
        content, offset = 0, "-1"
        while True:
            read = httpx.get(f"{server.url}/v1/stream/kept?offset={offset}", timeout=30)
            content += len(read.content)
            offset = read.headers["Stream-Next-Offset"]
            if read.headers.get("Stream-Up-To-Date") == "true":
                break
        assert content == (kept + 1) * 100_000


def _answer_to_the_head(url: str, *lines: str) -> bytes:
    """The first bytes of the answer to a request of which only the head is sent."""
    port = httpx.URL(url).port or 0
    with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
        raw.sendall("\r\n".join([*lines, f"Host: 127.0.0.1:{port}", "", ""]).encode())
        return raw.recv(4096)


def test_a_large_body_is_refused_before_it_is_sent(disk: Path) -> None:
    """But not a repetition of a write that was taken while there was room."""
    large = ["Content-Type: text/plain", "Content-Length: 16000000"]
    producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    with ServerProcess(disk / "data") as server:
        url = f"{server.url}/boxes/a"
        assert httpx.put(f"{server.url}/boxes").status_code == 201
        assert httpx.put(url, headers=_TEXT).status_code == 201
        first = httpx.post(url, headers={**_TEXT, **producer}, content=b"a" * 100_000)
        assert first.status_code == 200
        assert server.stop() == 0
    variables = {"STREAMD_STORAGE_MIN_FREE_BYTES": str(1024 * _MIB)}
    with ServerProcess(disk / "data", environment=variables) as server:
        for line in ("POST /boxes/a", "PUT /boxes/b", "POST /boxes/a/append-batch"):
            answer = _answer_to_the_head(server.url, f"{line} HTTP/1.1", *large)
            assert answer.startswith(b"HTTP/1.1 507 "), (line, answer)
            assert b"DISK_LOW" in answer
        again = httpx.post(
            f"{server.url}/boxes/a", headers={**_TEXT, **producer}, content=b"a" * 100_000
        )
        assert again.status_code == 204
        missing = httpx.post(f"{server.url}/boxes/missing", headers=_TEXT, content=b"a" * 100_000)
        assert missing.status_code == 404


def test_a_node_that_starts_on_a_disk_without_room_refuses_writes_at_once(disk: Path) -> None:
    variables = {"STREAMD_STORAGE_MIN_FREE_BYTES": str(1024 * _MIB)}
    with ServerProcess(disk / "data", environment=variables) as server:
        refused = httpx.put(f"{server.url}/v1/stream/a", content=b"a", headers=_TEXT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (507, "DISK_LOW")
        assert httpx.put(f"{server.url}/v1/stream/a", headers=_TEXT).status_code == 201
