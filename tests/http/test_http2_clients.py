"""Slow clients of HTTP/2, which may open many requests on one connection."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypercorn.protocol.h2 import StreamBuffer

from tests.http.serving import RawClient, serving, until
from tests.http.test_fairness import BINARY, STRANGER, STREAM, prepare_snapshots
from tests.support.long import first_quick

MIB = 1024 * 1024


class Http2Client:
    """A client that never grants a response more than `window_bytes`."""

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

    async def ask(self, method: str, path: str, begun: bytes = b"") -> int:
        """Send a request, with a body that has begun or with none; returns its stream's number."""
        stream_id = self._connection.get_next_available_stream_id()
        names = {":method": method, ":path": path, ":scheme": "http", ":authority": "x"}
        fields = [*names.items(), ("content-type", "application/octet-stream")]
        self._connection.send_headers(stream_id, fields, end_stream=not begun)
        if begun:
            self._connection.send_data(stream_id, begun)
        await self._raw.send(self._connection.data_to_send())
        return stream_id

    async def statuses(self, count: int) -> list[str]:
        """The statuses of the next `count` responses, in the order they come."""
        found: list[str] = []
        while len(found) < count:
            found += [
                cast("dict[str, str]", dict(event.headers))[":status"]
                for event in self._connection.receive_data(await self._raw.receive_some())
                if isinstance(event, h2.events.ResponseReceived)
            ]
        return found


def buffers() -> list[StreamBuffer]:
    """In which Hypercorn keeps responses until their clients take them."""
    return [each for each in gc.get_objects() if isinstance(each, StreamBuffer)]


@pytest.mark.parametrize("what", first_quick(["snapshot", "bootstrap", "tail"]))
async def test_an_untaken_response_is_not_buffered(what: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    settings: dict[str, Any] = {"http": "hypercorn", "write_timeout_ms": 1000}
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


async def test_unfinished_bodies_leave_room_for_other_clients(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "http": "hypercorn",
        "max_body_bytes": 10_000,
        "max_buffered_bytes": 40_000,
    }
    async with (
        serving(tmp_path, **settings) as server,
        server.client() as client,
        server.connect(source=STRANGER) as raw,
    ):
        await client.put("/v1/stream/s", headers=BINARY)
        stranger = Http2Client(raw)
        await stranger.begin()
        for _ in range(6):
            await stranger.ask("POST", "/v1/stream/s", begun=b"x" * 9_000)
        await until(lambda: server.door.shared.bodies.held == 2 * 9_000)
        answer = await client.post("/v1/stream/s", content=b"y" * 10_000, headers=BINARY)
        assert answer.status_code == 204
        assert server.door.shared.bodies.held <= settings["max_buffered_bytes"]


async def test_untaken_reads_leave_room_for_other_clients(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "http": "hypercorn",
        "max_body_bytes": MIB,
        "max_buffered_bytes": 4 * MIB,
    }
    async with (
        serving(tmp_path, **settings) as server,
        server.client() as client,
        server.connect(source=STRANGER) as raw,
    ):
        for number in range(5):
            made = await client.put(
                f"/v1/stream/{number}", content=b"%d" % number * MIB, headers=BINARY
            )
            assert made.status_code == 201
        stranger = Http2Client(raw, window_bytes=0)
        await stranger.begin()
        for number in range(4):
            await stranger.ask("GET", f"/v1/stream/{number}")
        assert sorted(await stranger.statuses(4)) == ["200", "200", "503", "503"]
        assert (await client.get("/v1/stream/4")).content == b"4" * MIB
