"""The official clients against a server that requires tokens, while a token is renewed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest
from durable_streams import DurableStream, DurableStreamError, stream

from tests.http.authorized import ROOT, Authorized, authorized
from tests.official_clients.test_npm_client import DEADLINE_S, URL_PATH, running

pytestmark = pytest.mark.long

SCOPES = ["read:demo/*"]
_PAUSE_S = 0.05


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Authorized]:
    with authorized("HTTP/1.1", tmp_path) as found:
        yield found


class Renewed:
    """A token in a file, whose former secrets are not valid any more."""

    def __init__(self, server: Authorized, file: Path) -> None:
        self._server = server
        self.file = file
        made = server.ask("POST", "/auth/tokens", json={"name": "reader", "scopes": SCOPES})
        file.write_text(made.json()["token"])

    def renew(self) -> None:
        made = self._server.ask("POST", "/auth/tokens/reader/rotate", json={"overlap_s": 0})
        self.file.write_text(made.json()["token"])

    def header(self) -> str:
        return f"Bearer {self.file.read_text()}"


def writer(server: Authorized) -> DurableStream:
    """A stream, opened with a token that never changes."""
    headers: Any = {"Authorization": f"Bearer {ROOT}"}
    return DurableStream.create(
        server.urls[0] + URL_PATH, content_type="application/json", headers=headers
    )


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_the_npm_client_continues_with_a_renewed_token(
    server: Authorized, tmp_path: Path, live: str
) -> None:
    handle, token = writer(server), Renewed(server, tmp_path / "token")
    with running("tail.mjs", server.urls[0] + URL_PATH, live, str(token.file)) as tail:
        for number in range(3):
            handle.append({"n": number})
            assert tail.says() == f'{{"n":{number}}}'
            token.renew()


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_the_pypi_client_continues_with_a_renewed_token(
    server: Authorized, tmp_path: Path, live: str
) -> None:
    handle, token = writer(server), Renewed(server, tmp_path / "token")
    heard: Queue[object] = Queue()
    ends = threading.Event()

    def tail() -> None:
        offset = "-1"
        asked: Any = {"live": live, "headers": {"Authorization": token.header}}
        while not ends.is_set():
            try:
                with stream(server.urls[0] + URL_PATH, offset=offset, **asked) as response:
                    for event in response.iter_events(mode="json"):
                        offset = event.next_offset
                        for item in event.data:
                            heard.put(item)
            except (DurableStreamError, httpx.HTTPError):
                time.sleep(_PAUSE_S)  # The file may not have the new token yet.

    threading.Thread(target=tail, daemon=True).start()
    try:
        for number in range(3):
            handle.append({"n": number})
            assert heard.get(timeout=DEADLINE_S) == {"n": number}
            token.renew()
    finally:
        ends.set()
