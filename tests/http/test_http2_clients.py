"""Slow clients of HTTP/2, who may open many requests on one connection."""

from __future__ import annotations

import gc
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypercorn.protocol.h2 import StreamBuffer

from tests.http.serving import RawClient, serving, until
from tests.http.test_fairness import BINARY, STREAM, prepare_snapshots

MIB = 1024 * 1024


class Http2Client:
    """A client that grants each response no more than `window_bytes` for ever."""

    def __init__(self, raw: RawClient, window_bytes: int = 65_535) -> None:
        self._raw = raw
        self._connection = h2.connection.H2Connection(
            h2.config.H2Configuration(header_encoding="utf-8")
        )
        self._window_bytes = window_bytes

    async def begin(self) -> None:
        initial = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
        self._connection.initiate_connection()
        self._connection.update_settings({initial: self._window_bytes})
        await self._raw.send(self._connection.data_to_send())

    async def ask(self, method: str, path: str) -> int:
        """Send a request without a body; returns the number of its stream."""
        stream_id = self._connection.get_next_available_stream_id()
        names = {":method": method, ":path": path, ":scheme": "http", ":authority": "x"}
        self._connection.send_headers(stream_id, names.items(), end_stream=True)
        await self._raw.send(self._connection.data_to_send())
        return stream_id


def buffers() -> list[StreamBuffer]:
    """In which Hypercorn keeps responses until their clients take them."""
    return [each for each in gc.get_objects() if isinstance(each, StreamBuffer)]


@pytest.mark.parametrize("what", ["snapshot", "bootstrap", "tail"])
async def test_a_response_that_is_not_taken_is_not_gathered(what: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    settings = {"http": "hypercorn", "write_timeout_ms": 1000}
    async with (
        serving(tmp_path, **settings) as server,
        server.client() as client,
        server.connect() as raw,
    ):
        at = await prepare_snapshots(client)
        if what == "tail":
            for _ in range(4):
                made = await client.post(STREAM, content=content[: 2 * MIB], headers=BINARY)
                assert made.status_code == 204
            target = f"{STREAM}?offset=-1&live=sse"
        else:
            assert (await client.put(f"{STREAM}/snapshot/{at}", content=content)).status_code == 204
            target = f"{STREAM}/bootstrap" if what == "bootstrap" else f"{STREAM}/snapshot/{at}"
        of_others, most = buffers(), 0

        slow = Http2Client(raw, window_bytes=0)
        await slow.begin()
        await slow.ask("GET", target)

        def is_given_up() -> bool:
            nonlocal most
            held = sum(len(each.buffer) for each in buffers() if each not in of_others)
            most = max(most, held)
            under_way = server.service.downloads.held or any(server.hub.reading_now.values())
            return most > 0 and not under_way

        await until(is_given_up)
        assert 0 < most <= 256 * 1024
