"""Streams that are older than the first quota are counted by their buckets."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from streamd.group import sweeping
from streamd.group.proposals import Unavailable
from streamd.node.node import Node
from streamd.process.threads import in_thread
from streamd.streams import keys
from streamd.streams.commands import SetLimits
from streamd.streams.limits import Limits
from tests.support.machines import wait_until
from tests.support.nodes import append, create, key, running_node

QUOTA = SetLimits("bucket", "another", Limits(max_bytes=1))


async def fill(node: Node, streams: int) -> None:
    for number in range(streams):
        await node.group.writes.propose(create(f"s{number}"))
        await node.group.writes.propose(append(f"s{number}", b"12"))


def counted(node: Node) -> tuple[int, int]:
    bucket = node.group.state.buckets.get(b"bucket")
    assert bucket is not None
    return bucket.counted, bucket.size


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_COUNTED_AT_ONCE", 7)


async def test_all_streams_from_before_the_first_quota_are_counted(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await fill(node, 50)
        assert counted(node) == (0, 0)
        await node.group.writes.propose(QUOTA)
        await wait_until(lambda: counted(node) == (50, 100))
        await node.group.writes.propose(create("new"))
        assert counted(node) == (51, 100)


async def test_a_restarted_node_counts_what_is_not_counted_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_leader(_: sweeping.Counting) -> bool:
        raise Unavailable("no leader is known")

    with monkeypatch.context() as broken:
        broken.setattr(sweeping.Counting, "step", no_leader)
        async with running_node(tmp_path) as node:
            await fill(node, 20)
            await node.group.writes.propose(QUOTA)
            await node.group.writes.propose(create("new"))
            assert counted(node) == (1, 0)
    async with running_node(tmp_path) as node:
        await wait_until(lambda: counted(node) == (21, 40))


async def test_the_passes_end_though_a_stream_cannot_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier release may have taken a key that this one refuses; a `Sweep` cannot have it."""
    is_stream_key = keys.is_stream_key
    async with running_node(tmp_path) as node:
        await fill(node, 10)
        monkeypatch.setattr(keys, "is_stream_key", lambda of: of != key("s3") and is_stream_key(of))
        await node.group.writes.propose(QUOTA)
        passes = sweeping.Counting(node.group, node.stores.state, in_thread)
        with trio.fail_after(60):
            while await passes.step():
                pass
        assert counted(node) == (9, 18)
