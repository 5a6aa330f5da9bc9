"""After the faults: the cluster recovers within bounds, and all nodes have the same state."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import trio

from streamd.group.reclaim import reclaim_some
from streamd.node.node import Node
from streamd.raft.messages import Configuration
from streamd.streams import keys
from streamd.streams.chunks import Chunk
from tests.sim.clients import Answer, Client, Path, Unavailable, Unknown, Workload
from tests.sim.host import Host
from tests.sim.watch import InvariantBroken

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

PROGRESS_BOUND_S = 20.0
CONVERGENCE_BOUND_S = 40.0
# Streams that were deleted leave rows that are removed in the background.
_TIDYING_S = 12.0

_CHUNKS = msgspec.msgpack.Decoder(Chunk)


class Recovery:
    """After healing, the cluster accepts writes, brings its members to one state, and shows it."""

    def __init__(self, simulation: Simulation, workload: Workload) -> None:
        self._simulation = simulation
        self._workload = workload
        self._growth = 0

    async def run(self) -> None:
        """Raises `InvariantBroken`."""
        await self.until_writable()
        await trio.sleep(_TIDYING_S)
        members = await self._until_equal()
        store = self._simulation.store
        if store is not None:
            await store.drained(lambda: members)
            members = await self._until_equal()
        await self._compare(members)
        for host in members:
            for path in self._workload.paths:
                await self._read_finally(host, path)
        if store is not None:
            store.judge(members)
            for host in members:
                store.count(host)
            store.summed_up()

    # -- progress -----------------------------------------------------------------------------

    async def until_writable(self) -> None:
        """One of the writes begun from now on, one each second, succeeds within the bound.

        Raises `InvariantBroken`.
        """
        began_at = trio.current_time()
        path = Path(f"afterwards{len(self._workload.paths)}")
        with trio.move_on_after(PROGRESS_BOUND_S):
            async with trio.open_nursery() as nursery:
                for attempt in count():
                    client = Client(self._workload, f"{path.name}.{attempt}")
                    nursery.start_soon(client.create, path)
                    with trio.move_on_after(1):
                        while not path.exists:  # noqa: ASYNC110
                            await trio.sleep(0.05)
                    if path.exists:
                        break
                nursery.cancel_scope.cancel()
        if not path.exists:
            raise InvariantBroken(f"no write succeeds within {PROGRESS_BOUND_S:g} s of healing")
        self._workload.paths.append(path)
        took_ms = round((trio.current_time() - began_at) * 1000)
        counted = self._simulation.counted
        counted["slowest recovery, ms"] = max(counted["slowest recovery, ms"], took_ms)

    async def _until_equal(self) -> list[Host]:
        """Wait until all members have applied the same entries, and nothing waits."""
        with trio.move_on_after(CONVERGENCE_BOUND_S):
            while (members := self._equal_members()) is None:
                await self._grow()
                await trio.sleep(0.1)
            return members
        raise InvariantBroken(f"members differ {CONVERGENCE_BOUND_S:g} s after healing")

    async def _grow(self) -> None:
        """Grow the log: a node that alone had some entries, and lost them, waits for its length."""
        for host in self._simulation.serving():
            if host.node is not None and not host.is_whole:
                path = Path(f"growth{self._growth}")
                self._growth += 1
                await Client(self._workload, path.name).create(path)
                self._workload.paths.append(path) if path.exists else None
                return

    def _equal_members(self) -> list[Host] | None:
        configuration = self._configuration()
        if configuration is None or configuration.voters_outgoing:
            return None
        members = [self._simulation.hosts[node_id] for node_id in configuration.members()]
        places = set()
        for host in members:
            if host.node is None:
                return None
            group = host.node.group
            if not group.view.may_vote:
                return None
            places.add(
                (
                    group.view.applied_index,
                    group.view.commit_index,
                    group.view.last_index,
                    group.view.term,
                )
            )
        if len(places) != 1:
            return None
        applied, _, last, _ = places.pop()
        return sorted(members, key=lambda host: host.node_id) if applied == last else None

    def _configuration(self) -> Configuration | None:
        for host in self._simulation.hosts.values():
            if host.leads and host.node is not None:
                return host.node.group.view.configuration
        return None

    # -- equality -----------------------------------------------------------------------------

    async def _compare(self, members: list[Host]) -> None:
        digests: dict[int, tuple[int, int]] = {}
        for host in members:
            assert host.node is not None
            await host.node.group.storage.flush()
            _reclaim(host.node)
            index = host.node.group.state.stored_index
            chunks_too = self._simulation.store is None
            digests[host.node_id] = index, state_digest(host, chunks_too=chunks_too)
        if len(set(digests.values())) != 1:
            raise InvariantBroken(f"states differ (index, digest): {digests}")

    async def _read_finally(self, host: Host, path: Path) -> None:
        recorder = self._workload.recorder
        pending = recorder.invoke(
            f"final-n{host.node_id}",
            "final_read",
            path.name,
            path.incarnation,
            node=f"n{host.node_id}",
        )
        data, offset = b"", "-1"
        while True:
            answer = await self._get(host, path, offset)
            if answer.status == 404:
                pending.fail("not-found")
                return
            data, offset = data + answer.body, answer.next_offset
            if answer.up_to_date:
                break
        pending.ok(data=data, next_offset=offset, up_to_date=True, closed=answer.closed)

    async def _get(self, host: Host, path: Path, offset: str) -> Answer:
        query = b"offset=" + offset.encode()
        try:
            return await self._workload.send(host, "GET", path.url, 5.0, query=query)
        except (Unavailable, Unknown) as error:
            raise InvariantBroken(f"n{host.node_id} cannot be read: {error}") from error


def _reclaim(node: Node) -> None:
    """Remove the rows of what was deleted, as the node does by itself every few seconds."""
    for letter in (keys.GARBAGE, keys.TRIM):
        start: bytes | None = letter
        while start is not None:
            start = reclaim_some(node.stores.state, start, node.group.pins.held())


def state_digest(host: Host, *, chunks_too: bool = True) -> int:
    """Everything in the store, except for the borders of chunks; with a cold store, each node
    decides which chunks it evicts."""
    assert host.node is not None
    digest = 0
    content: dict[int, tuple[int, int]] = {}
    for key, value in host.node.stores.state.scan(b"", b"\xff", limit=1 << 30):
        if key[:1] in (keys.CHUNK, keys.DROPPED) and not chunks_too:
            continue
        if key[:1] == keys.CHUNK:
            chunk = _CHUNKS.decode(value)
            stream_id = int.from_bytes(key[1:9], "big")
            data, lengths = content.get(stream_id, (0, 0))
            for length in chunk.lengths:
                lengths = crc32(b"%d" % length, lengths)
            content[stream_id] = crc32(chunk.data, data), lengths
        else:
            digest = crc32(value, crc32(key, digest))
    return crc32(repr(sorted(content.items())).encode(), digest)
