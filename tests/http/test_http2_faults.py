"""A malformed request of HTTP/2 ends alone: others on its connection go on, and no log has what it
sent."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import hpack
import pytest
from structlog.testing import capture_logs

from streamd.http.http2 import http2_frames
from streamd.http.http2.http2_frames import Flood, FrameMeter
from tests.http.serving import RawClient, Serving, serving
from tests.http.test_http2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    frames_of,
)
from tests.support.seeds import one_each

STREAM = "/v1/stream/s"
SECRET = b"whisper-token"
PROTOCOL_ERROR = 1
Fields = list[tuple[bytes, bytes]]

GET: Fields = [
    (b":method", b"GET"),
    (b":scheme", b"http"),
    (b":path", b"/healthz"),
    (b":authority", b"x"),
]


def fields(*more: tuple[bytes, bytes], **pseudo: bytes | None) -> Fields:
    """Those of a GET, with others in the place of some; None leaves one out."""
    changed = {b":" + name.encode(): value for name, value in pseudo.items()}
    kept = [(name, changed.pop(name, value)) for name, value in GET]
    whole = [(name, value) for name, value in [*kept, *changed.items()] if value is not None]
    return [*whole, *more]


def write(method: bytes, *more: tuple[bytes, bytes]) -> Fields:
    path = STREAM.encode()
    return fields((b"content-type", b"text/plain"), *more, method=method, path=path)


# A status, or None where HTTP/2 demands a reset of the stream.
FAULTS: dict[str, tuple[Fields, str | None]] = {
    "a raw byte in the path": (fields(path=b"/v1/stream/\xff" + SECRET), "400"),
    "a raw byte in the query": (fields(path=b"/v1/stream/s?offset=\xc3\xa9" + SECRET), "400"),
    "a space in the path": (fields(path=b"/v1/stream/a b" + SECRET), "400"),
    "a control character in the path": (fields(path=b"/v1/\x01\x7f\x1b[2J" + SECRET), "400"),
    "a line in the path": (fields(path=b"/v1/\r\nX: " + SECRET), None),
    "no slash in the path": (fields(path=b"v1" + SECRET), "400"),
    "a huge path": (fields(path=b"/v1/stream/" + SECRET * 1000), "414"),
    "an empty path": (fields(path=b""), None),
    "no path": (fields(path=None), None),
    "two paths": (fields((b":path", b"/" + SECRET)), None),
    "a raw byte in the method": (fields(method=b"G\xffT" + SECRET), "400"),
    "a space in the method": (fields(method=b"GET " + SECRET), "400"),
    "a method in lower case": (fields(method=b"get"), "501"),
    "an empty method": (fields(method=b""), "400"),
    "no method": (fields(method=None), None),
    "two methods": (fields((b":method", b"PUT")), None),
    "no scheme": (fields(scheme=None), None),
    "CONNECT without a path": ([(b":method", b"CONNECT"), (b":authority", b"x:1")], "405"),
    "CONNECT with a path": (fields(method=b"CONNECT"), None),
    "CONNECT with a protocol": (fields(method=b"CONNECT", protocol=b"websocket"), "405"),
    "a protocol without CONNECT": (fields(protocol=b"websocket"), None),
    "an unknown pseudo-header": (fields((b":" + SECRET, b"x")), None),
    "a header of responses": (fields((b":status", b"200")), None),
    "an order": ([(b"a", SECRET), *GET], None),
    "a name in upper case": (fields((b"X-A", SECRET)), None),
    "an empty name": (fields((b"", SECRET)), None),
    "a raw byte in a name": (fields((b"x-\xff", SECRET)), None),
    "a line in a value": (fields((b"x", b"a\nb" + SECRET)), None),
    "a NUL in a value": (fields((b"x", b"\0" + SECRET)), None),
    "space around a value": (fields((b"x", b" " + SECRET + b" ")), None),
    "Connection": (fields((b"connection", b"close")), None),
    "Transfer-Encoding": (fields((b"transfer-encoding", b"chunked")), None),
    "TE": (fields((b"te", b"gzip")), None),
    "another host": (fields((b"host", SECRET)), None),
    "an odd authority": (fields(authority=b"\xff" + SECRET), "400"),
    "a length in words": (fields((b"content-length", b"1e3" + SECRET)), None),
    "a negative length": (fields((b"content-length", b"-1")), None),
    "a huge length": (fields((b"content-length", b"9" * 5000)), None),
    "two lengths": (fields((b"content-length", b"0"), (b"content-length", b"5")), None),
    "two authorizations": (fields((b"authorization", SECRET), (b"authorization", SECRET)), "200"),
    "a raw byte in a value": (fields((b"authorization", b"Bearer \xff" + SECRET)), "200"),
    "a header too large": (fields((b"x", SECRET * 3000)), "431"),
    "too many headers": (fields(*((b"x%d" % i, b"") for i in range(1000))), "431"),
}


class Client:
    """A client that sends any fields, on one connection."""

    def __init__(self, raw: RawClient) -> None:
        self._raw = raw
        self._encoder = hpack.Encoder()
        self._connection = h2.connection.H2Connection(
            h2.config.H2Configuration(header_encoding=None)
        )
        self._next = 1
        self.statuses: dict[int, str] = {}
        self.resets: dict[int, int] = {}
        self.ended: set[int] = set()
        self.goaway: int | None = None

    async def begin(self) -> None:
        self._connection.initiate_connection()
        await self._raw.send(self._connection.data_to_send())

    async def ask(self, headers: Fields, *, body: bytes | None = None, ends: bool = True) -> int:
        stream_id, self._next = self._next, self._next + 2
        # The library is told of a good request, and the server sent this one.
        self._connection.send_headers(stream_id, GET, end_stream=body is None and ends)
        self._connection.data_to_send()
        await self.send_block(stream_id, headers, ends=body is None and ends)
        if body is not None:
            flags = END_STREAM if ends else 0
            await self._raw.send(frame(DATA, body, flags=flags, stream=stream_id))
        return stream_id

    async def send_block(self, stream_id: int, headers: Fields, *, ends: bool = True) -> None:
        block = self._encoder.encode(headers)
        pieces = [block[i : i + 16_000] for i in range(0, len(block), 16_000)] or [b""]
        for number, piece in enumerate(pieces):
            kind = HEADERS if number == 0 else CONTINUATION
            flags = END_STREAM if ends and number == 0 else 0
            flags |= END_HEADERS if number == len(pieces) - 1 else 0
            await self._raw.send(frame(kind, piece, flags=flags, stream=stream_id))

    async def outcome(self, stream_id: int) -> str | int | None:
        """The status of the response, the code of the reset, or None if the connection ended."""
        while stream_id not in self.ended | self.resets.keys():
            if not (data := await self._raw.receive_some()):
                return None
            for event in self._connection.receive_data(data):
                match event:
                    case h2.events.ResponseReceived():
                        headers = cast("dict[bytes, bytes]", dict(event.headers))
                        self.statuses[event.stream_id] = headers[b":status"].decode()
                    case h2.events.StreamEnded():
                        self.ended.add(event.stream_id)
                    case h2.events.StreamReset():
                        self.resets[event.stream_id] = int(event.error_code)
                    case h2.events.ConnectionTerminated():
                        self.goaway = int(event.error_code or 0)
        return self.resets.get(stream_id) or self.statuses[stream_id]


@asynccontextmanager
async def client_of(tmp_path: Path) -> AsyncIterator[tuple[Client, Serving]]:
    settings: dict[str, Any] = {"http": "hypercorn", "body_timeout_ms": 60_000}
    async with serving(tmp_path, **settings) as server, server.connect() as raw:
        client = Client(raw)
        await client.begin()
        yield client, server


def has_secret(logs: list[Any], caplog: pytest.LogCaptureFixture) -> bool:
    return SECRET.decode() in repr(logs) + caplog.text


async def test_a_malformed_request_ends_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)  # As for libraries in `logs`.
    async with client_of(tmp_path) as (client, server):
        with capture_logs() as logs:
            made = await client.ask(write(b"PUT"), body=b"a")
            assert await client.outcome(made) == "201"
            slow = await client.ask(write(b"POST"), body=b"b", ends=False)
            for name, (headers, status) in FAULTS.items():
                with_body = await client.ask(headers, body=b"x" * 100)
                without = await client.ask(headers)
                for faulty in (without, with_body):
                    found = await client.outcome(faulty)
                    assert found == (status or PROTOCOL_ERROR), (name, found)
                assert await client.outcome(await client.ask(GET)) == "200", name
            await client.send_block(slow, [], ends=True)
            assert await client.outcome(slow) == "204"
        assert await server.content(STREAM) == b"ab"
        assert [each["event"] for each in logs] == []
    assert not has_secret(logs, caplog)


@pytest.mark.parametrize(
    ("trailers", "ends"),
    [
        ([(b":path", b"/" + SECRET)], True),
        ([(b"X-Upper", SECRET)], True),
        ([(b"connection", SECRET)], True),
        ([(b"x", b"a\r\nb")], True),
        ([(b"fine", b"but no end")], False),
    ],
)
async def test_malformed_trailers_reset_their_request(
    trailers: Fields, ends: bool, tmp_path: Path
) -> None:
    async with client_of(tmp_path) as (client, server):
        post = await client.ask(write(b"PUT"), body=b"never", ends=False)
        await client.send_block(post, trailers, ends=ends)
        assert await client.outcome(post) == PROTOCOL_ERROR
        assert await client.outcome(await client.ask(GET)) == "200"
        assert await server.tail(STREAM) is None


async def test_a_body_of_another_length_resets_its_request(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (client, server):
        for length, body in ((b"3", b"four"), (b"5", b"four")):
            put = write(b"PUT", (b"content-length", length))
            assert await client.outcome(await client.ask(put, body=body)) == PROTOCOL_ERROR
        assert await client.outcome(await client.ask(GET)) == "200"
        assert await server.tail(STREAM) is None


@pytest.fixture
def _few_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small allowance, so that no machine is too slow to exceed it."""
    monkeypatch.setattr(http2_frames, "BURST_FRAMES", 100)
    monkeypatch.setattr(http2_frames, "FRAMES_PER_S", 1)


def test_an_endless_block_of_headers_is_a_flood() -> None:
    meter = FrameMeter(0.0)
    list(meter.turns(PREFACE + frame(HEADERS, b"x", stream=1), 0.0))
    with pytest.raises(Flood):
        list(meter.turns(frame(CONTINUATION, bytes(16_384), stream=1) * 20, 0.0))


def bomb() -> bytes:
    """A block of a few hundred bytes that names a large header a thousand times."""
    encoder = hpack.Encoder()
    first = encoder.encode([*GET, (b"bomb", b"x" * 3000)])
    return first + bytes((0x80 | 62,)) * 5000


FLOODS: dict[str, bytes] = {
    "hpack bomb": frame(HEADERS, bomb(), flags=END_HEADERS | END_STREAM, stream=1),
    "hpack garbage": frame(HEADERS, b"\xff" * 50, flags=END_HEADERS, stream=1),
    "continuations": frame(HEADERS, b"", stream=1) + frame(CONTINUATION, b"", stream=1) * 5000,
    "large continuations": frame(HEADERS, b"", stream=1)
    + frame(CONTINUATION, bytes(16_384), stream=1) * 100,
    "a continuation alone": frame(CONTINUATION, b"", stream=1),
    "data of no request": frame(DATA, b"x" * 100, stream=1),
    "an even stream": frame(HEADERS, b"", flags=END_HEADERS, stream=2),
    "a huge frame": frame(DATA, bytes(100_000), stream=1),
    "settings of a stream": frame(SETTINGS, b"", stream=1),
    "a short reset": frame(RST_STREAM, b"x", stream=1),
}


def many(headers: Fields, *, resets: bool) -> bytes:
    """Requests, each reset at once by the client, or left to the server."""
    encoder, sent = hpack.Encoder(), b""
    for stream in range(1, 601, 2):
        block = encoder.encode(headers)
        sent += frame(HEADERS, block, flags=END_HEADERS | END_STREAM, stream=stream)
        sent += frame(RST_STREAM, b"\0\0\0\x08", stream=stream) if resets else b""
    return sent


FLOODS["rapid resets"] = many(GET, resets=True)
# They cost the server a request each, and the client nothing.
FLOODS["provoked resets"] = many(fields(path=None), resets=False)


@pytest.mark.usefixtures("_few_frames")
@pytest.mark.parametrize("name", FLOODS)
async def test_a_broken_connection_ends_with_a_reason_and_no_other(
    name: str, tmp_path: Path
) -> None:
    async with (
        serving(tmp_path, http="hypercorn") as server,
        server.connect() as client,
        server.client() as other,
    ):
        with capture_logs() as logs:
            with suppress(OSError):  # The server may not wait for all of it.
                await client.send(PREFACE + frame(SETTINGS) + FLOODS[name])
            answered = frames_of(await client.read_to_end())
            reasons = [int.from_bytes(each[13:17], "big") for each in answered if each[3] == GOAWAY]
            assert reasons
            if "resets" in name:
                assert reasons == [ENHANCE_YOUR_CALM]
            assert (await other.get("/healthz")).status_code == 200
        assert [each for each in logs if each["event"] == "connection failed"] == []


@pytest.mark.parametrize("seed", one_each(10, 2, once_failed=range(20)))
async def test_no_frames_make_a_connection_fail(seed: int, tmp_path: Path) -> None:
    """Requests of which bytes were changed: the connection goes on or ends by GOAWAY, and never by
    an error that nobody expected."""
    random = Random(seed)
    async with serving(tmp_path, http="hypercorn") as server:
        with capture_logs() as logs:
            for _ in range(30):
                await _send_changed(server, random)
            async with server.client() as other:
                assert (await other.get("/healthz")).status_code == 200
        assert [each for each in logs if each["event"] == "connection failed"] == []


async def _send_changed(server: Serving, random: Random) -> None:
    encoder, sent = hpack.Encoder(), []
    for stream in range(1, 13, 2):
        headers, _ = random.choice([*FAULTS.values(), (GET, "200")])
        block = bytearray(encoder.encode(headers[:20], huffman=random.random() < 0.5)[:16_000])
        if random.random() < 0.3 and block:
            block[random.randrange(len(block))] = random.randrange(256)
        flags = END_HEADERS | random.choice([0, END_STREAM])
        sent.append(frame(HEADERS, bytes(block), flags=flags, stream=stream))
        kind = random.choice([DATA, RST_STREAM, HEADERS, CONTINUATION, random.randrange(12)])
        extra = frame(kind, random.randbytes(random.choice([0, 4, 8, 100])), stream=stream)
        sent.append(extra if random.random() < 0.5 else b"")
    async with server.connect() as client:
        await client.send(PREFACE + frame(SETTINGS) + b"".join(sent))
        client.finish_sending()
        await client.read_to_end()
