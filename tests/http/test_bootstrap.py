"""Bootstrap over HTTP. The number in a test's name is the section of the extensions."""

from __future__ import annotations

import json
from email import message_from_bytes, policy
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import trio

from streamd.group.reclaim import reclaim_some
from tests.http.serving import serving, until
from tests.http.test_snapshots import JSON, START, STREAM, TEXT, Client, prepared, refused

OCTETS = "application/octet-stream"


class Part(NamedTuple):
    """One part of a multipart body."""

    content_type: str
    body: bytes


def parts(answer: httpx.Response) -> list[Part]:
    """The parts of a bootstrap, cut at its boundary as RFC 2046 says."""
    kind, _, boundary = answer.headers["content-type"].partition("; boundary=")
    assert kind == "multipart/mixed"
    assert len(boundary) <= 70
    preamble, *found, end = (b"\r\n" + answer.content).split(b"\r\n--" + boundary.encode())
    assert (preamble, end) == (b"", b"--\r\n")
    return [_part(raw) for raw in found]


def _part(raw: bytes) -> Part:
    head, _, body = raw.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    name, _, value = head.partition(b": ")
    assert name == b"Content-Type"
    return Part(value.decode(), body)


async def bootstrap(client: Client, path: str = STREAM) -> httpx.Response:
    return await client.http.get(f"{path}/bootstrap")


# -- 3.1, 3.2 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["live=sse", "live=long-poll", "offset=-1", "x"])
async def test_3_1_any_query_is_400(tmp_path: Path, query: str) -> None:
    async with prepared(tmp_path) as client:
        answer = await client.http.get(f"{STREAM}/bootstrap?{query}")
        assert refused(answer) == (400, "INVALID_REQUEST")


async def test_3_2_without_a_snapshot_the_first_part_is_empty(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        answer = await bootstrap(client)
        assert answer.status_code == 200
        assert answer.headers["stream-snapshot-offset"] == "-1"
        assert answer.headers["stream-next-offset"] == client.offsets[3]
        assert answer.headers["stream-up-to-date"] == "true"
        assert answer.headers["cache-control"] == "no-store"
        text = "text/plain"
        assert parts(answer) == [
            Part(OCTETS, b""),
            Part(text, b"one"),
            Part(text, b"two"),
            Part(text, b"six"),
        ]


async def test_3_2_the_snapshot_comes_first_then_every_message_after_it(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        path = f"{STREAM}/snapshot/{client.offsets[2]}"
        await client.http.put(path, content=b'{"n":2}', headers=JSON)
        answer = await bootstrap(client)
        assert answer.headers["stream-snapshot-offset"] == client.offsets[2]
        expected = [Part("application/json", b'{"n":2}'), Part("text/plain", b"six")]
        assert parts(answer) == expected
        await client.server.node.group.storage.flush()
        client.server.node.group.state.load()
        assert parts(await bootstrap(client)) == expected


async def test_3_2_a_stream_that_does_not_exist_is_404(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        assert refused(await bootstrap(client, "/bucket/none")) == (404, "STREAM_NOT_FOUND")
        assert refused(await bootstrap(client, "/nowhere/s")) == (404, "STREAM_NOT_FOUND")


async def test_3_2_each_json_message_is_a_part_as_it_was_sent(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.http.put("/bucket/j", headers=JSON)
        await client.http.post("/bucket/j", content=b'[{"a": 1}, 1e400,"x"]', headers=JSON)
        await client.http.post("/bucket/j", content=b"[[2, 3]]", headers=JSON)
        _, *messages = parts(await bootstrap(client, "/bucket/j"))
        assert [part.content_type for part in messages] == ["application/json"] * 4
        assert [part.body for part in messages] == [b'{"a": 1}', b"1e400", b'"x"', b"[2, 3]"]


async def test_3_2_messages_full_of_lines_and_dashes_arrive_as_they_are(tmp_path: Path) -> None:
    nasty = [b"\r\n--", b"--\r\n", b"\r\n\r\n", b"\r\n--streamd-\r\n", bytes(range(256)), b"-" * 99]
    async with prepared(tmp_path) as client:
        await client.http.put("/bucket/n", headers={"Content-Type": OCTETS})
        for message in nasty:
            await client.http.post("/bucket/n", content=message, headers={"Content-Type": OCTETS})
        assert [part.body for part in parts(await bootstrap(client, "/bucket/n"))[1:]] == nasty


async def test_3_2_a_boundary_is_never_used_twice(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        types = {(await bootstrap(client)).headers["content-type"] for _ in range(3)}
        assert len(types) == 3


async def test_3_2_any_mime_parser_understands_it(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        answer = await bootstrap(client)
        raw = f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode() + answer.content
        message = message_from_bytes(raw, policy=policy.HTTP)
        assert not message.defects
        found = [part.get_payload(decode=True) for part in message.iter_parts()]
        assert found == [b"", b"one", b"two", b"six"]


async def test_3_2_a_stream_without_messages_is_only_its_snapshot(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[3])
        await client.http.post(STREAM, headers={"Stream-Closed": "true"})
        answer = await bootstrap(client)
        assert parts(answer) == [Part("text/plain", b"state")]
        assert answer.headers["stream-closed"] == "true"
        head = await client.http.head(f"{STREAM}/bootstrap")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["stream-next-offset"] == client.offsets[3]


async def test_3_2_a_forks_messages_are_cut_where_the_fork_was(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        headers = {
            "Stream-Forked-From": STREAM,
            "Stream-Fork-Offset": client.offsets[1],
            "Stream-Fork-Sub-Offset": "2",
        }
        assert (await client.http.put("/bucket/f", headers=headers)).status_code == 201
        await client.http.post("/bucket/f", content=b"own", headers=TEXT)
        for _ in ("from memory", "from the store"):
            bodies = [part.body for part in parts(await bootstrap(client, "/bucket/f"))]
            assert bodies == [b"", b"one", b"tw", b"own"]
            await client.server.node.group.storage.flush()
            client.server.node.group.state.load()


async def test_3_2_many_messages_of_all_sizes_arrive_whole(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.http.put("/bucket/j", headers=JSON)
        sent: list[str] = []
        for size in (1, 10, 1000, 300_000, 3):
            batch = [f"{number}{'x' * size}" for number in range(1200 if size < 100 else 5)]
            await client.http.post("/bucket/j", content=json.dumps(batch), headers=JSON)
            sent += batch
        for _ in ("from memory", "from the store"):
            _, *messages = parts(await bootstrap(client, "/bucket/j"))
            assert [json.loads(part.body) for part in messages] == sent
            await client.server.node.group.storage.flush()
            client.server.node.group.state.load()


# -- what happens meanwhile -------------------------------------------------------------------


async def test_a_publish_during_a_bootstrap_removes_nothing_from_it(tmp_path: Path) -> None:
    size = 20_000_000
    async with prepared(tmp_path) as client, client.server.connect(receive_buffer=4096) as raw:
        node = client.server.node
        state = b"s" * size
        await client.publish(client.offsets[1], state)
        await node.group.storage.flush()
        await raw.send(b"GET %b/bootstrap HTTP/1.1\r\nHost: x\r\n\r\n" % STREAM.encode())
        head = await raw.read_head()
        assert head.headers["stream-snapshot-offset"] == client.offsets[1]
        await client.publish(client.offsets[3], b"newer")
        await client.append(b"new")
        await node.group.storage.flush()
        # The removal runs, and must leave alone the records being sent.
        for letter in (b"g", b"t"):
            reclaim_some(node.stores.state, letter, node.group.pins.held())
        body = b""
        received = [body]
        while chunk := await raw.read_chunk():
            received.append(chunk)
        body = b"".join(received)
        assert body.count(b"s" * 1000) == size // 1000
        assert b"two" in body
        assert b"six" in body
        assert b"new" not in body
        await until(lambda: not node.group.pins.held())
        assert reclaim_some(node.stores.state, b"g", node.group.pins.held()) is None
        assert not node.stores.state.scan(b"g", b"h", limit=9)


async def test_3_3_bootstrap_then_sse_shows_every_message_once(tmp_path: Path) -> None:
    """Writers append while a publisher folds what it has read into snapshots."""
    total = 150
    async with prepared(tmp_path) as client:
        await client.http.put("/bucket/j", headers=JSON)
        done = trio.Event()
        told = [START]

        async def write() -> None:
            for number in range(total):
                answer = await client.http.post("/bucket/j", content=b"%d" % number, headers=JSON)
                told.append(answer.headers["stream-next-offset"])
            await client.http.post("/bucket/j", headers={"Stream-Closed": "true"})
            done.set()

        async def publish() -> None:
            while not done.is_set():
                folded = len(told) - 1
                content = json.dumps(list(range(folded))).encode()
                answer = await client.publish(told[folded], content, "/bucket/j")
                assert answer.status_code == 204
                await trio.lowlevel.checkpoint()

        async def read() -> None:
            while True:
                finished = done.is_set()
                assert await state_of(client, "/bucket/j") == list(range(total))
                if finished:
                    return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(publish)
            for _ in range(3):
                nursery.start_soon(read)


async def state_of(client: Client, path: str) -> list[int]:
    """The content that a client has after a bootstrap and a tail up to the close."""
    async with client.server.client() as http:
        answer = await http.get(f"{path}/bootstrap")
        snapshot, *messages = parts(answer)
        known: list[int] = json.loads(snapshot.body) if snapshot.body else []
        known += [json.loads(part.body) for part in messages]
        at = answer.headers["stream-next-offset"]
        query = {"offset": at, "live": "sse"}
        async with http.stream("GET", path, params=query) as tail:
            assert tail.status_code in (200, 410)
            if tail.status_code == 410:  # A publish came in between: start again.
                return await state_of(client, path)
            event, closed = "", False
            async for line in tail.aiter_lines():
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                elif line.startswith("data:") and event == "data":
                    known += json.loads(line.removeprefix("data:"))
                elif line.startswith("data:"):
                    closed = "streamClosed" in line
    # A publish that overtakes a reader ends its connection: start again.
    return known if closed else await state_of(client, path)


async def test_downloads_at_once_are_limited(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_snapshot_downloads=1) as server,
        server.client() as http,
        server.connect(receive_buffer=4096) as raw,
    ):
        client = Client(http, server)
        await client.prepare()
        await client.publish(client.offsets[1], bytes(20_000_000))
        path = f"{STREAM}/snapshot/{client.offsets[1]}"
        await raw.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        await raw.read_head()
        for target in (path, f"{STREAM}/bootstrap"):
            answer = await http.get(target)
            assert refused(answer) == (503, "TOO_MANY_DOWNLOADS")
            assert answer.headers["retry-after"] == "1"
        raw.close()
        await until(lambda: not server.node.group.pins.held())
        assert (await http.get(path)).status_code == 200
