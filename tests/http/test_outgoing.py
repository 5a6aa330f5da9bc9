"""How much slow readers may hold in memory, together and each."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streamd.http.protocol.sse import data_event, data_event_pieces
from streamd.http.sockets.outgoing import Outgoing, OutgoingFull
from tests.http.serving import serving, until

BINARY = {"Content-Type": "application/octet-stream"}
RECORD = 8 * 1024 * 1024


@pytest.mark.parametrize("content_type", ["text/plain", "application/json", "image/png"])
@pytest.mark.parametrize("alphabet", ["\r\n", " a\r\n", "é€😀 \n", "a"])
def test_a_large_event_in_pieces_is_the_same_event(content_type: str, alphabet: str) -> None:
    random = Random(alphabet)
    parts = [
        "".join(random.choices(alphabet, k=length)).encode()[random.randrange(3) :]
        for length in (1, 200_000, 7, 49_152, 100_000)
    ]
    payload = b"".join([*parts, b"x,"])
    pieces = list(data_event_pieces(content_type, [*parts, memoryview(b"xx,")[1:]]))
    assert b"".join(pieces) == data_event(content_type, [*parts, b"x,"])
    if content_type == "text/plain":
        text = payload.decode("utf-8", "replace").encode()
        lines = re.split(rb"\r\n|\n|\r", text)
        fields = [b"data:" + (b" " if line.startswith(b" ") else b"") + line for line in lines]
        assert b"".join(pieces) == b"\n".join([b"event: data", *fields, b"", b""])
    assert all(0 < len(piece) < 7 * 64 * 1024 for piece in pieces)


@pytest.mark.parametrize("query", ["offset=-1&max_bytes=1", "offset=-1&live=sse"])
async def test_stalled_readers_hold_at_most_the_allowed_memory(query: str, tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_body_bytes": RECORD, "max_buffered_bytes": RECORD}
    async with (
        serving(tmp_path, **limits) as server,
        server.client() as client,
        server.connect(receive_buffer=4096) as first,
    ):
        for name in ("a", "b"):
            made = await client.put(f"/v1/stream/{name}", content=b"x" * RECORD, headers=BINARY)
            assert made.status_code == 201
        get = f"GET /v1/stream/%s?{query} HTTP/1.1\r\nHost: x\r\n\r\n"
        await first.send((get % "a").encode())
        held = server.door.shared.outgoing, server.service.outgoing
        await until(lambda: sum(each.held_bytes for each in held) >= RECORD)
        async with server.connect() as second:
            await second.send((get % "b").encode())
            answer = await second.read_response()
            if "sse" in query:
                assert answer.status == 200
                assert len(answer.body) < 100, "it ends before the event"
            else:
                assert (answer.status, answer.code) == (503, "OVERLOADED")
                assert answer.headers["retry-after"] == "1"
        first.close()
        await until(lambda: not any(each.held_bytes for each in held))
        assert (await client.get("/v1/stream/b?offset=-1")).content == b"x" * RECORD


def test_shared_bytes_count_once() -> None:
    shared, other = b"x" * 600_000, b"y" * 600_000
    outgoing = Outgoing(1_000_000)
    parts = [memoryview(shared)[:400_000], memoryview(shared)[400_000:]]
    with outgoing.holding(parts, 600_000, "a"), outgoing.holding([shared], 600_000, "a"):
        assert outgoing.held_bytes == 600_000
        with pytest.raises(OutgoingFull), outgoing.holding([other], 600_000, "b"):
            pass
        assert outgoing.held_bytes == 600_000
    assert outgoing.held_bytes == 0


def test_one_reader_leaves_room_for_others() -> None:
    answers = [bytes([number]) * 300_000 for number in range(4)]
    outgoing = Outgoing(1_000_000)
    with outgoing.holding(answers[:1], 300_000, "a"):
        with pytest.raises(OutgoingFull), outgoing.holding(answers[1:2], 300_000, "a"):
            pass
        with (
            outgoing.holding(answers[:1], 300_000, "a"),
            outgoing.holding(answers[2:3], 300_000, "b"),
            outgoing.holding(answers[3:], 300_000, "c"),
        ):
            assert outgoing.held_bytes == 900_000
    with outgoing.holding(answers[:1] * 4, 1_200_000, "a"):
        assert outgoing.held_bytes == 300_000
