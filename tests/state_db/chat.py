"""A schema, a stream of it on a server, and runs on both event loops."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import msgspec
import pytest

from streamd.client import AsyncClient
from streamd.state import collection
from streamd.state.db import StreamDB

BACKENDS = ["asyncio", pytest.param("trio", marks=pytest.mark.long)]
DEADLINE_S = 60.0


class User(msgspec.Struct):
    id: str
    name: str = ""
    team: str = ""


class Chat(StreamDB):
    users = collection(User, type="user", key="id", indexes=["team"])
    flags = collection(type="flag")


class Stream:
    """A JSON stream on a server, as its other writers and readers see it."""

    def __init__(self, server_url: str, name: str) -> None:
        self.server_url = server_url
        self.name = name
        self._url = f"{server_url}/v1/stream/{name}"
        self.create()

    def create(self) -> None:
        made = httpx.put(self._url, headers={"Content-Type": "application/json"})
        assert made.status_code == 201, made.text

    def append(self, *events: Any) -> str:
        """Append messages; returns the offset after them."""
        body = events[0] if len(events) == 1 and isinstance(events[0], bytes) else None
        answer = httpx.post(
            self._url,
            headers={"Content-Type": "application/json"},
            content=json.dumps(events).encode() if body is None else body,
        )
        assert answer.status_code in (200, 204), answer.text
        return answer.headers["stream-next-offset"]

    def messages(self) -> Iterator[Any]:
        offset = "-1"
        while True:
            answer = httpx.get(self._url, params={"offset": offset})
            yield from answer.json()
            if answer.headers.get("stream-up-to-date") == "true":
                return
            offset = answer.headers["stream-next-offset"]

    def close(self) -> None:
        assert httpx.post(self._url, headers={"Stream-Closed": "true"}).status_code == 204

    def delete(self) -> None:
        assert httpx.delete(self._url).status_code == 204

    @asynccontextmanager
    async def following(self, **options: Any) -> AsyncIterator[Chat]:
        """A database that follows the stream."""
        async with (
            AsyncClient(self.server_url) as client,
            Chat(client.stream(self.name), **options) as db,
        ):
            yield db

    @asynccontextmanager
    async def ready(self, **options: Any) -> AsyncIterator[Chat]:
        """A database that follows the stream and is up to date."""
        async with self.following(**options) as db:
            await db.ready()
            yield db


def run(backend: str, main: Callable[[], Awaitable[None]]) -> None:
    """Run a test on an event loop, with a limit."""

    async def limited() -> None:
        with anyio.fail_after(DEADLINE_S):
            await main()

    anyio.run(limited, backend=backend)


async def wait_until(db: Chat, offset: str) -> None:
    """Wait until the database has read up to an offset."""
    while db.offset < offset:  # noqa: ASYNC110
        await anyio.sleep(0.005)


def names(db: Chat) -> dict[str, str]:
    return {key: user.name for key, user in db.users.items()}
