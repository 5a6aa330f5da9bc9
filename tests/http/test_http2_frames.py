"""Frames of HTTP/2 in pieces of little work, and floods of them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from streamd.http.http2.http2_frames import BURST_FRAMES, FRAMES_PER_TURN, Flood, FrameMeter
from tests.http.pki import Pki
from tests.http.serving import PATIENCE_S, serving
from tests.support.seeds import seeds
from tests.support.wire import checked_async_client

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 2, 3, 4, 6, 7, 8
CONTINUATION, UNKNOWN = 9, 0xFA
END_STREAM, END_HEADERS = 1, 4
ENHANCE_YOUR_CALM = 11


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def frames_of(data: bytes) -> list[bytes]:
    """Whole frames, and what is left of the last."""
    frames = []
    while data:
        size = 9 + int.from_bytes(data[:3], "big")
        frames.append(data[:size])
        data = data[size:]
    return frames


def random_frames(random: Random) -> list[bytes]:
    frames = []
    for _ in range(300):
        kind = random.choice([DATA, HEADERS, PRIORITY, SETTINGS, WINDOW_UPDATE, UNKNOWN])
        payload = random.randbytes(random.choice([0, 1, 4, 5, 200, 16_384]))
        frames.append(frame(kind, payload, flags=END_HEADERS, stream=random.randrange(9)))
        if kind == HEADERS and random.random() < 0.3:
            frames[-1] = frame(HEADERS, payload, stream=1)
            frames.append(frame(CONTINUATION, b"more", flags=END_HEADERS, stream=1))
    return frames


@pytest.mark.parametrize("seed", seeds(10))
def test_split_frames_are_the_same_except_for_ignorable_ones(seed: int) -> None:
    random = Random(seed)
    frames = random_frames(random)
    kept = [each for each in frames if each[3] not in (PRIORITY, UNKNOWN)]
    data, meter, passed_on = PREFACE + b"".join(frames), FrameMeter(0.0), b""
    while data:
        size = random.choice([1, 8, 30, 1000, 65_536])
        for piece in meter.turns(data[:size], 0.0):
            passed_on += piece
        data = data[size:]
    assert passed_on == PREFACE + b"".join(kept)


@pytest.mark.parametrize("kind", [DATA, HEADERS, PING, WINDOW_UPDATE, PRIORITY, UNKNOWN])
def test_a_turn_has_few_frames(kind: int) -> None:
    many = 600
    pieces = list(FrameMeter(0.0).turns(PREFACE + frame(kind, b"12345") * many, 0.0))
    assert len(pieces) >= many // FRAMES_PER_TURN
    first, *others = pieces
    assert all(len(frames_of(piece)) <= FRAMES_PER_TURN for piece in others)
    assert len(frames_of(first.removeprefix(PREFACE))) <= FRAMES_PER_TURN


def test_no_frame_is_dropped_inside_a_header_block() -> None:
    """The library must see it, because it is an error there."""
    sent = PREFACE + frame(HEADERS, b"x", stream=1) + frame(UNKNOWN, b"y")
    assert b"".join(FrameMeter(0.0).turns(sent, 0.0)) == sent
    sent = PREFACE + frame(UNKNOWN, bytes(16_385))
    assert b"".join(FrameMeter(0.0).turns(sent, 0.0)) == sent


def test_bytes_that_are_not_http_2_pass_unchanged() -> None:
    meter = FrameMeter(0.0)
    sent = [b"P", b"OST / HTTP/1.1\r\n", PREFACE, frame(PING, bytes(8)) * 2000]
    for data in sent:
        assert list(meter.turns(data, 0.0)) == [data]
    assert not meter.speaks_http2


@pytest.mark.parametrize("kind", [PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, UNKNOWN])
def test_control_frames_alone_are_a_flood(kind: int) -> None:
    meter = FrameMeter(0.0)
    list(meter.turns(PREFACE + frame(kind) * BURST_FRAMES, 0.0))
    with pytest.raises(Flood):
        list(meter.turns(frame(kind), 0.0))
    meter = FrameMeter(0.0)
    list(meter.turns(PREFACE, 0.0))
    for second in range(2_000):
        list(meter.turns(frame(kind) * 50, float(second)))


def test_empty_data_frames_are_a_flood() -> None:
    meter = FrameMeter(0.0)
    with pytest.raises(Flood):
        list(meter.turns(PREFACE + frame(DATA, stream=1) * (BURST_FRAMES + 1), 0.0))
    ends = frame(HEADERS, b"x", flags=END_HEADERS, stream=1) + frame(DATA, flags=END_STREAM)
    list(FrameMeter(0.0).turns(PREFACE + ends * 2 * BURST_FRAMES, 0.0))


def test_bodies_pay_for_the_frames_that_they_need() -> None:
    updates = frame(WINDOW_UPDATE, b"1234") * 2
    down, up = FrameMeter(0.0), FrameMeter(0.0)
    list(down.turns(PREFACE, 0.0))
    list(up.turns(PREFACE, 0.0))
    for _ in range(10_000):
        down.count_sent(16_384)
        list(down.turns(updates, 0.0))
        list(up.turns(frame(DATA, bytes(1024), stream=1) + frame(PING, bytes(8)), 0.0))


# -- on a connection -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PRIORITY, SETTINGS, PING, WINDOW_UPDATE, UNKNOWN])
async def test_a_flooding_client_is_disconnected_with_a_reason(kind: int, tmp_path: Path) -> None:
    payload = {PRIORITY: b"\0\0\0\0\1", PING: bytes(8), WINDOW_UPDATE: b"\0\0\0\1"}.get(kind, b"")
    stream = 3 if kind == PRIORITY else 0
    async with (
        serving(tmp_path, http="hypercorn") as server,
        server.connect() as client,
        server.client() as other,
    ):
        await client.send(PREFACE + frame(SETTINGS))
        await client.send(frame(kind, payload, stream=stream) * (BURST_FRAMES + 500))
        answered = frames_of(await client.read_to_end())
        code = int.from_bytes(answered[-1][13:17], "big")
        assert (answered[-1][3], code) == (GOAWAY, ENHANCE_YOUR_CALM)
        assert (await other.get("/healthz")).status_code == 200


@pytest.mark.long
async def test_large_bodies_are_not_a_flood(tmp_path: Path, pki: Pki) -> None:
    body = bytes(range(256)) * 32 * 1024
    tls: dict[str, Any] = {"tls_cert": str(pki.certificate), "tls_key": str(pki.key)}
    async with (
        serving(tmp_path, http="hypercorn", **tls) as server,
        checked_async_client(
            base_url=server.url, verify=pki.client, http2=True, timeout=PATIENCE_S
        ) as client,
    ):
        for _ in range(3):
            await client.post("/v1/stream/s", content=body)
            await client.put("/v1/stream/s", content=body)
        read = await client.get(f"/v1/stream/s?max_bytes={len(body)}")
        assert read.http_version == "HTTP/2"
        assert read.content == body
