"""A node in the test's own process, on real stores, with a clock that the test can set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio

from streamd.app import App, Environment
from streamd.config.settings import ColdConfig, Config
from streamd.config.subscriptions import SubscriptionsConfig
from streamd.group.stores import Stores
from streamd.http.streams.live import Hub
from streamd.node.node import UNGUARDED, Node, wall_clock_ms
from streamd.process.threads import OpenThread, RunBlocking, in_thread, own_thread
from streamd.streams.chunks import Window
from streamd.streams.commands import Append, Change, Create, Outcome
from streamd.streams.content import split_body
from streamd.streams.keys import stream_key
from streamd.streams.model import Settings
from streamd.streams.offsets import START
from streamd.tiering.async_store import AsyncObjectStore

TEXT = "text/plain"


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that a node's own tasks bring about."""
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - it is the node's state; no event tells of it
            await trio.sleep(0.01)


class Clock:
    """Wall time, in ms since the epoch, that moves only when a test moves it."""

    def __init__(self, now_ms: int | None = None) -> None:
        self.now_ms = wall_clock_ms() if now_ms is None else now_ms

    def __call__(self) -> int:
        return self.now_ms


class Witness(Hub):
    """A listener that records the changes it hears."""

    present = True

    def __init__(self) -> None:
        super().__init__(wall_clock_ms, 1)
        self.told: list[dict[int, Change]] = []

    async def publish(self, group_id: int, changes: dict[int, Change]) -> None:
        self.told.append(changes)

    def start_over(self, group_id: int) -> None:
        self.told.clear()


@asynccontextmanager
async def running_node(
    directory: Path,
    *,
    clock: Clock | None = None,
    listener: Witness | None = None,
    cold: AsyncObjectStore | None = None,
    cold_config: ColdConfig | None = None,
    run_blocking: RunBlocking = in_thread,
    open_log_thread: OpenThread = own_thread,
    subscriptions: SubscriptionsConfig | None = None,
) -> AsyncIterator[Node]:
    """A recovered node; stopped and closed properly at the end."""
    stores = await in_thread(Stores.open, directory, 1)
    environment = Environment(
        clock_ms=clock or wall_clock_ms,
        random=Random(1),
        run_blocking=run_blocking,
        open_log_thread=open_log_thread,
        cold=cold,
    )
    config = Config(
        cold=cold_config or ColdConfig(),
        storage=UNGUARDED,
        subscriptions=subscriptions or SubscriptionsConfig(),
    )
    try:
        app = App(config, stores, environment, hub=listener or Witness())
        async with app.running():
            yield app.node
    finally:
        stores.close()


def key(name: str) -> bytes:
    return stream_key(b"bucket", name.encode())


def create(name: str, *, ttl_ms: int | None = None, content_type: str = TEXT) -> Create:
    return Create(key(name), Settings(content_type, ttl_ms), implicit_bucket=True)


def append(name: str, data: bytes, content_type: str = TEXT) -> Append:
    records = split_body(content_type, data)
    return Append(key(name), content_type, records.data, records.lengths)


async def append_to(node: Node, name: str, data: bytes) -> Outcome:
    return await node.group.writes.propose(append(name, data), len(data))


async def read_all(node: Node, name: str, max_bytes: int = 1 << 20) -> bytes:
    """The whole content, read from the beginning in pieces."""
    content = b""
    at = START
    while True:
        stream = await node.reads.stream(key(name))
        assert stream is not None
        found = await node.reads.read(stream, Window(at, max_bytes))
        if not found.size:
            return content
        content += b"".join(found.parts)
        at = found.end
