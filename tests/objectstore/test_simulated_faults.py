"""An object store that fails often: every answer is right, and everything arrives in the end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar, TypeVarTuple

import pytest
import trio
import trio.testing

from streamd.objectstore.errors import ColdUnavailable, ObjectCorrupt
from streamd.objectstore.names import check_digest
from streamd.objectstore.packs import Pack, PackWriter
from streamd.streams.chunks import Chunk
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.cold_reader import ColdReader
from tests.sim.objects import ObjectsOf, SimulatedObjects
from tests.support.packs import chunks_of, located
from tests.support.seeds import seeds

T = TypeVar("T")
Args = TypeVarTuple("Args")


async def _inline(
    call: Callable[[*Args], T], *args: *Args, limiter: trio.CapacityLimiter | None = None
) -> T:
    """Blocking calls that block nobody, as in the simulation."""
    await trio.lowlevel.checkpoint()
    return call(*args)


def _pack(random: Random, number: int) -> tuple[Pack, list[Chunk]]:
    writer = PackWriter(0, term=1, number=number)
    chunks = [Chunk(record, record * 50, [50], [], random.randbytes(50)) for record in range(20)]
    for chunk in chunks:
        writer.add(number, chunk)
    return writer.finish(), chunks


@pytest.mark.parametrize("seed", seeds(20))
async def test_wrong_bytes_are_never_returned(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    random = Random(seed)
    shared = SimulatedObjects(random)
    shared.refusal_probability = shared.lost_reply_probability = 0.2
    shared.flip_probability = 0.3
    cold = AsyncObjectStore(ObjectsOf(shared), run_blocking=_inline, random=random, max_requests=2)
    reader = ColdReader(cold, cache_bytes=500)
    made = [_pack(random, number) for number in range(5)]
    for pack, _ in made:
        while True:
            try:
                await cold.put_verified(pack.name, pack.content)
                break
            except (ColdUnavailable, ObjectCorrupt):
                continue
    for _ in range(50):
        pack, chunks = random.choice(made)
        first = random.randrange(len(chunks))
        try:
            found = await reader.chunks(located(pack)[first:])
        except (ColdUnavailable, ObjectCorrupt):
            continue
        assert found == chunks[first : first + len(found)]
    assert shared.counts["flipped bit"] > 5
    assert shared.counts["lost reply to put"] + shared.counts["lost reply to get"] > 3
    assert shared.counts["refusal"] > 5
    for name, (content, _) in shared.objects.items():
        check_digest(name, content)
        assert len(list(chunks_of(content))) == 20


async def test_an_outage_is_reported_and_ends_by_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    shared = SimulatedObjects(Random(1))
    cold = AsyncObjectStore(
        ObjectsOf(shared), run_blocking=_inline, random=Random(1), max_requests=2
    )
    shared.is_away = True
    began = trio.current_time()
    with pytest.raises(ColdUnavailable):
        await cold.put("a", b"x")
    assert trio.current_time() - began < 5
    shared.heal()
    await cold.put("a", b"x")
    assert await cold.get("a", 0, 1) == b"x"
