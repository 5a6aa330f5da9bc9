"""The object store of a simulated cluster: its faults, and the check that it has exactly what the
states refer to in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import pytest
import trio

from streamd.config.settings import ColdConfig
from streamd.streams import keys
from tests.objectstore.nodes.verdict import Judge
from tests.sim.objects import ObjectsOf, SimulatedObjects
from tests.sim.watch import InvariantBroken

if TYPE_CHECKING:
    from tests.sim.host import Host

T = TypeVar("T")
Args = TypeVarTuple("Args")

# The range of a request's duration while the store is healthy.
LATENCY_S = (0.002, 0.02)
# From healing until everything is in the store, and orphans are removed.
DRAINED_BOUND_S = 40.0


class ColdStore:
    """The objects, the configuration that all nodes share, and the faults. It draws from a random
    generator of its own: schedules without a cold store are as they were."""

    def __init__(self, seed: int, counted: Counter[str]) -> None:
        self._random = Random(f"cold {seed}")
        self._counted = counted
        self.objects = SimulatedObjects(self._random, lambda: round(trio.current_time() * 1000))
        self.latency_s = LATENCY_S
        self.config = ColdConfig(
            backend="s3",
            s3_bucket="simulated",
            pack_bytes=64 * 1024,
            flush_after_ms=self._random.choice((100, 500, 2000)),
            # Everything evictable is evicted, so that reads are cold.
            hot_keep_bytes=1,
            hot_limit_bytes=self._random.choice((3_000, 20_000, 1 << 30)),
            cache_bytes=self._random.choice((1, 1 << 20)),
            # A restore point may be removed as soon as there is a newer one, which is soon.
            archive_retention_hours=0.001,
            snapshot_interval_minutes=self._random.choice((0.05, 0.2)),
            gc_interval_ms=1_000,
            gc_grace_ms=3_000,
        )
        self._mean_pause_s = self._random.choice((0.5, 2.0, 6.0))

    def open(self) -> ObjectsOf:
        return ObjectsOf(self.objects)

    def took_s(self) -> float:
        """How long half of a request takes."""
        return self._random.uniform(*self.latency_s) / 2

    # -- faults -------------------------------------------------------------------------------

    async def break_now_and_then(self) -> None:
        """Until cancelled."""
        faults = (self._away, self._errors, self._lost_replies, self._slow, self._flips)
        while True:
            await trio.sleep(self._random.expovariate(1 / self._mean_pause_s))
            self._random.choice(faults)()
            await trio.sleep(self._random.choice((0.3, 1.5, 5.0)) * self._random.uniform(0.5, 1.5))
            self.heal()

    def heal(self) -> None:
        self.objects.heal()
        self.latency_s = LATENCY_S

    def _away(self) -> None:
        self._counted["store: away"] += 1
        self.objects.is_away = True

    def _errors(self) -> None:
        self._counted["store: errors"] += 1
        self.objects.refusal_probability = self._random.choice((0.1, 0.5))

    def _lost_replies(self) -> None:
        self._counted["store: lost replies"] += 1
        self.objects.lost_reply_probability = self._random.choice((0.3, 0.8))

    def _slow(self) -> None:
        self._counted["store: slow"] += 1
        self.latency_s = self._random.choice(((0.05, 0.3), (0.5, 3.0)))

    def _flips(self) -> None:
        self._counted["store: flipped bits"] += 1
        self.objects.flip_probability = self._random.choice((0.1, 0.5))

    # -- in the end ---------------------------------------------------------------------------

    async def drained(self, hosts: Callable[[], list[Host]]) -> None:
        """Wait until everything is in the store and removals are done, on every node.

        Raises `InvariantBroken`.
        """
        self.heal()
        began_at = trio.current_time()
        with trio.move_on_after(DRAINED_BOUND_S):
            while not all(_is_drained(host) for host in hosts()):  # noqa: ASYNC110
                await trio.sleep(0.2)
            await self._tidied(hosts)
            self._counted["slowest drain, ms"] = round((trio.current_time() - began_at) * 1000)
            return
        told = {host.node_id: _status(host) for host in hosts()}
        raise InvariantBroken(f"not drained {DRAINED_BOUND_S:g} s after healing: {told}")

    async def _tidied(self, hosts: Callable[[], list[Host]]) -> None:
        """Wait for a whole round of removal by any leader."""
        for host in hosts():
            if host.leads and host.node is not None:
                gc = host.node.cold_gc
                wanted = gc.want_round()
                gc.task.run_now()
                while gc.ended < wanted:  # noqa: ASYNC110
                    await trio.sleep(0.1)

    def judge(self, hosts: list[Host]) -> None:
        """Compare the state of each node with the store. Raises `InvariantBroken`."""
        for host in hosts:
            assert host.node is not None
            stored = host.node.stores.state

            def scan(start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
                yield from stored.scan(start, stop, limit=1 << 30)  # noqa: B023 - used at once

            verdict = Judge(scan, self.open()).judge()
            if verdict.findings:
                raise InvariantBroken(f"n{host.node_id}: {verdict.findings[:5]}")
            if verdict.orphans:
                raise InvariantBroken(f"orphans that stayed: {verdict.orphans[:5]}")
            for what in ("slices", "packs", "records here and there"):
                self._counted[f"cold: {what} in the end"] += verdict.counts[what]

    def count(self, host: Host) -> None:
        """Record what a node did before it ends."""
        node = host.node
        if node is None or node.cold_tier is None:
            return
        self._counted["cold: reads"] += node.cold_tier.reader.misses
        self._counted["cold: damaged reads"] += node.cold_tier.reader.damaged
        for name in ("dropped_slices", "deleted_packs", "repacked_packs", "deleted_orphans"):
            self._counted[f"cold: {name.replace('_', ' ')}"] += getattr(node.cold_gc.total, name)

    def summed_up(self) -> None:
        """Add the counts of the store itself."""
        for what, count in self.objects.counts.items():
            self._counted[f"store: {what}"] += count


def _is_drained(host: Host) -> bool:
    node = host.node
    if node is None or node.group.state.unstored or node.group.state.header.hot_bytes:
        return False
    stored = node.stores.state
    return not any(
        stored.scan(letter, bytes([letter[0] + 1]), limit=1) for letter in (keys.GARBAGE, keys.TRIM)
    )


def _status(host: Host) -> str:
    if host.node is None:
        return "down"
    header = host.node.group.state.header
    tier = host.node.cold_tier
    errors = [task.error for task in tier.leader_tasks] if tier is not None else []
    store = host.node.stores.state
    rows = [
        row[:60]
        for letter in (keys.HOT, keys.GARBAGE, keys.TRIM)
        for row, _ in store.scan(letter, bytes([letter[0] + 1]), limit=10)
    ]
    return f"hot {header.hot_bytes}, leads {host.leads}, errors {errors}, rows {rows}"


@contextmanager
def small_packs(seed: int) -> Iterator[None]:
    """Slices and packs so small that a few appends fill them."""
    random = Random(f"packs {seed}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamd.tiering.flush.SLICE_BYTES", random.choice((300, 2_000, 1 << 20)))
        patch.setattr("streamd.tiering.flush.MAX_SLICES", random.choice((2, 10, 1_000)))
        patch.setattr("streamd.tiering.gc.ORPHANS_INTERVAL_S", 5.0)
        yield
