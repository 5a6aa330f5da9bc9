"""The leader ends producers that have long been idle, of streams that have many."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.group import sweeping
from streamd.node.node import Node
from streamd.streams import producers
from streamd.streams.commands import Append, Result
from streamd.streams.model import ProducerStamp
from tests.support.nodes import TEXT, Clock, create, key, running_node, wait_until


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 20)
    monkeypatch.setattr(producers, "CROWDED", 18)
    monkeypatch.setattr(sweeping, "_MOST_AT_ONCE", 5)
    monkeypatch.setattr(sweeping, "_ROWS_AT_ONCE", 3)
    monkeypatch.setattr(sweeping, "_PAUSE_S", 0.1)


async def write(node: Node, name: str, seq: int = 0) -> Result:
    stamp = ProducerStamp(name, 0, seq)
    return (
        await node.group.writes.propose(Append(key("s"), TEXT, b"x", [1], producer=stamp))
    ).result


def count(node: Node) -> int:
    stream = node.group.state.streams.get(key("s"))
    assert stream is not None
    return stream.producers


async def test_the_idlest_producers_end_when_new_ones_come(tmp_path: Path) -> None:
    clock = Clock()
    async with running_node(tmp_path, clock=clock) as node:
        await node.group.writes.propose(create("s"))
        for number in range(20):
            clock.now_ms += 1
            assert await write(node, f"p{number}") is Result.APPENDED
        assert await write(node, "new") is Result.TOO_MANY_PRODUCERS
        clock.now_ms += producers.MIN_IDLE_MS
        assert await write(node, "p0", 1) is Result.APPENDED
        await node.group.reads.stored()
        assert await write(node, "new") is Result.TOO_MANY_PRODUCERS
        await wait_until(lambda: count(node) == 15)
        assert await write(node, "new") is Result.APPENDED
        assert await write(node, "p0", 1) is Result.DUPLICATE
        for number in range(1, 6):
            assert await write(node, f"p{number}", 1) is Result.SEQ_GAP
        assert await write(node, "p6", 1) is Result.APPENDED


async def test_a_stream_whose_producers_are_busy_is_left_alone(tmp_path: Path) -> None:
    clock = Clock()
    async with running_node(tmp_path, clock=clock) as node:
        await node.group.writes.propose(create("s"))
        for number in range(20):
            await write(node, f"p{number}")
        await node.group.reads.stored()
        await wait_until(lambda: not node.group.state.crowded)
        proposed = node.group.view.last_index
        assert await write(node, "new") is Result.TOO_MANY_PRODUCERS
        await wait_until(lambda: not node.group.state.crowded)
        assert node.group.view.last_index == proposed + 1
        assert count(node) == 20


async def test_a_single_node_counts_from_its_first_append(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.group.writes.propose(create("s"))
        await write(node, "p")
        assert count(node) == 1
