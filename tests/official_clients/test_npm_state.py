"""`@durable-streams/state` and `streamd.state` write to one stream and end with equal states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import anyio
import httpx
import pytest

from streamd.client import AsyncClient, AsyncStream
from streamd.state import (
    ChangeEvent,
    ControlEvent,
    MaterializedState,
    collection,
    control,
    decode_batch,
    encode_event,
)
from streamd.state.db import StreamDB
from tests.official_clients.test_npm_client import Script, running
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

EVENTS = 60
KEYS = ["1", "2", "3", "ключ", "a/b c", "🙂"]
PARTS: list[Any] = [None, True, 0.1, 1e21, -5, "ü", "\ud83d", "\0", [1, ["x"]], {"a": {}}]


class Shared(StreamDB):
    users = collection(dict[str, Any], type="user", key="id", indexes=["by"])


NOTES = collection(type="note")  # in no database: unknown types are left alone


@pytest.fixture(name="node", scope="module")
def _node() -> Iterator[Script]:
    with running("interop.mjs") as node:
        yield node


def random_event(random: Random, number: int) -> ChangeEvent:
    users = Shared.users
    key = random.choice(KEYS)
    if random.random() < 0.2:
        return NOTES.upsert({random.choice("xy"): random.choice(PARTS)}, key=key)
    value = {"id": key, "by": "python", "number": number, "part": random.choice(PARTS)}
    made = [users.insert(value), users.update(value), users.upsert(value), users.delete(key)]
    return random.choice(made)


async def write(stream: AsyncStream, db: Shared, random: Random, resets: bool) -> set[str]:
    """Write at random, as the other writer does at the same time. Returns the transactions."""
    txids = set()
    for number in range(EVENTS // 2):
        if random.random() < 0.1:
            marks = [control("snapshot-start"), control("snapshot-end"), control("reset")]
            await stream.append(encode_event(random.choice(marks if resets else marks[:2])))
        events = [random_event(random, number) for _ in range(random.randrange(1, 4))]
        txids.add(await db.write(*events))
    txids.add(await db.write(Shared.users.delete("done", txid="python-done")))
    await db.wait_for("node-done")
    return txids


def reference(url: str) -> tuple[dict[str, Any], set[str]]:
    """The state that `MaterializedState` makes of the whole stream, and its transactions."""
    state = MaterializedState()
    answer = httpx.get(url)
    assert answer.headers["stream-up-to-date"] == "true"
    txids = set()
    for event in decode_batch(answer.content):
        if isinstance(event, ChangeEvent):
            state.apply(event)
            txids |= {event.headers.txid} if event.headers.txid else set()
        elif isinstance(event, ControlEvent) and event.headers.control == "reset":
            state.clear()
    return {type_: dict(state.get_type(type_)) for type_ in ("user", "note")}, txids


@pytest.mark.parametrize("resets", [False, True], ids=["", "resets"])
@pytest.mark.parametrize("seed", range(3))
def test_both_end_with_equal_states(
    server: ServerProcess, node: Script, seed: int, resets: bool
) -> None:
    backend = "trio" if seed % 2 else "asyncio"
    name = f"shared/{backend}-{seed}-{resets}"
    url = f"{server.url}/v1/stream/{name}"
    assert httpx.put(url, headers={"Content-Type": "application/json"}).status_code == 201

    async def main() -> None:
        async with AsyncClient(server.url) as client:
            stream = client.stream(name)
            async with Shared(stream) as db:
                await db.ready()
                node.tell(json.dumps([url, seed, EVENTS, resets]))
                written.update(await write(stream, db, Random(seed), resets))
                for by in ("node", "python"):
                    found = {row["id"] for row in db.users.where(by=by)}
                    assert found == {key for key, row in db.users.items() if row["by"] == by}
                ours.update(db.users)

    ours: dict[str, Any] = {}
    written: set[str] = set()
    anyio.run(main, backend=backend)
    theirs = json.loads(node.says())
    state, txids = reference(url)
    assert theirs["state"] == state
    assert set(theirs["txids"]) == txids
    assert written < txids
    assert ours == {key: {**value, "id": key} for key, value in state["user"].items()}
    if not resets:
        assert theirs["rows"] == ours
        assert len(ours) > 1
    assert {row["by"] for row in ours.values()} <= {"node", "python"}
