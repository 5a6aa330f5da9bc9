"""Collections that a stream keeps up to date: `@durable-streams/state` with TanStack DB."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.official_clients.test_npm_client import Script, running
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

JSON = {"Content-Type": "application/json"}
USERS = "/v1/stream/state/users"


def change(operation: str, key: str, name: str = "") -> str:
    value = {} if operation == "delete" else {"value": {"name": name}}
    return json.dumps({"type": "user", "key": key, "headers": {"operation": operation}, **value})


def offset_of(rows: str, collection: Script) -> str:
    """Wait until the collection has these rows. Returns the offset they were read with."""
    while True:
        told, _, offset = collection.says().partition(" @")
        if told == rows:
            return offset


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_collection_follows_the_changes_of_its_stream(server: ServerProcess, live: str) -> None:
    """Offsets are those of batches: messages come back as they were sent (decision 010)."""
    url = f"{server.url}{USERS}-{live}"
    before = f"[{change('insert', '1', 'Ann')},{change('insert', '2', 'Bob')}]"
    made = httpx.put(url, headers=JSON, content=before)
    assert made.status_code == 201
    with running("state.mjs", url, live) as collection:
        assert offset_of("1=Ann 2=Bob", collection) == made.headers["stream-next-offset"]
        for line, rows in (
            (change("update", "1", "Eve"), "1=Eve 2=Bob"),
            (change("upsert", "3", "Cy"), "1=Eve 2=Bob 3=Cy"),
            (change("delete", "2"), "1=Eve 3=Cy"),
            (change("upsert", "3", "Dan"), "1=Eve 3=Dan"),
        ):
            collection.tell(line)
            told = offset_of(rows, collection)
            assert told == httpx.head(url).headers["stream-next-offset"]
        collection.end_input()
        assert collection.status() == 0
    assert "offset" not in httpx.get(url).text
