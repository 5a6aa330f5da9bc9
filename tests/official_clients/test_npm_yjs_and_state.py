"""Yjs and the State Protocol on top of streams: their npm packages, against a server process."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.official_clients.test_npm_client import Script, running
from tests.support.server_process import ServerProcess

JSON = {"Content-Type": "application/json"}
USERS = "/v1/stream/state/users"


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_editors_of_a_document_join_at_its_snapshots(tmp_path: Path, live: str) -> None:
    """New editors read from one past the snapshot's offset: past the tail, or inside an update."""
    with (
        ServerProcess(tmp_path / "data") as server,
        running("edit.mjs", server.url, live) as editors,
    ):
        assert editors.says() == "ready"
        for line, told in (
            ("write " + "a" * 150, "1 150"),
            ("snapshot", "1 150"),
            ("join", "2 150"),
            ("write b", "2 151"),
            ("join", "3 151"),
            ("write " + "c" * 150, "3 301"),
            ("snapshot", "3 301"),
            ("join", "4 301"),
            ("write d", "4 302"),
        ):
            editors.tell(line)
            assert editors.says() == told, line
        editors.end_input()
        assert editors.status() == 0


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
def test_a_collection_follows_the_changes_of_its_stream(tmp_path: Path, live: str) -> None:
    """Offsets are those of batches: messages come back as they were sent (decision 010)."""
    with ServerProcess(tmp_path / "data") as server:
        url = server.url + USERS
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
