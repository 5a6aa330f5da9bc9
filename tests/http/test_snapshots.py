"""Snapshots over HTTP. The number in a test's name is the section of the extensions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from streamd.streams import keys
from tests.http.serving import Serving, serving, until

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
STREAM = "/bucket/s"
START = "0000000000000000_0000000000000000"
MIB = 1024 * 1024


class Client:
    """Three records of three bytes each in `STREAM`; `offsets` are the boundaries, from 0 on."""

    def __init__(self, http: httpx.AsyncClient, server: Serving) -> None:
        self.http = http
        self.server = server
        self.offsets = [START]

    async def prepare(self) -> None:
        assert (await self.http.put("/bucket")).status_code == 201
        assert (await self.http.put(STREAM, headers=TEXT)).status_code == 201
        for record in (b"one", b"two", b"six"):
            await self.append(record)

    async def append(self, data: bytes) -> None:
        answer = await self.http.post(STREAM, content=data, headers=TEXT)
        self.offsets.append(answer.headers["stream-next-offset"])

    async def publish(
        self, offset: str, content: bytes | AsyncIterator[bytes] = b"state", path: str = STREAM
    ) -> httpx.Response:
        return await self.http.put(f"{path}/snapshot/{offset}", content=content, headers=TEXT)


@asynccontextmanager
async def prepared(tmp_path: Path, **settings: Any) -> AsyncIterator[Client]:
    async with serving(tmp_path, **settings) as server, server.client() as http:
        client = Client(http, server)
        await client.prepare()
        yield client


def code(answer: httpx.Response) -> str:
    found: str = answer.json()["error"]["code"]
    return found


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, code(answer)


async def pieces(total: int, size: int = 100_000) -> AsyncIterator[bytes]:
    """A body of so many bytes without a declared length; each piece differs from the others."""
    for number, start in enumerate(range(0, total, size)):
        yield (b"%08d" % number * size)[: min(size, total - start)]


async def whole(total: int) -> bytes:
    return b"".join([piece async for piece in pieces(total)])


# -- 2.2 publish ------------------------------------------------------------------------------


async def test_2_2_publishing_answers_204_with_the_offsets(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        answer = await client.publish(client.offsets[2])
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["stream-snapshot-offset"] == client.offsets[2]
        assert answer.headers["stream-next-offset"] == client.offsets[3]


async def test_2_2_the_same_snapshot_again_is_204(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        for _ in range(2):
            assert (await client.publish(client.offsets[2])).status_code == 204
        large = await whole(MIB)
        for _ in range(2):
            assert (await client.publish(client.offsets[3], large)).status_code == 204


async def test_2_2_another_snapshot_at_the_same_offset_is_409(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[2])
        others = [
            await client.publish(client.offsets[2], b"other"),
            await client.publish(client.offsets[2], await whole(MIB)),
        ]
        path = f"{STREAM}/snapshot/{client.offsets[2]}"
        others.append(await client.http.put(path, content=b"state", headers=JSON))
        assert [refused(other) for other in others] == [(409, "SNAPSHOT_EXISTS")] * 3
        assert (await client.http.get(path)).content == b"state"


@pytest.mark.parametrize(
    "offset", ["-1", "now", "", "x", "0000000000000001_0000000000000001", "1_3", "%00"]
)
async def test_2_2_an_offset_inside_a_message_is_400(tmp_path: Path, offset: str) -> None:
    async with prepared(tmp_path) as client:
        answer = await client.publish(offset)
        assert answer.status_code == 400
        assert code(answer) in ("INVALID_OFFSET", "INVALID_PATH")


async def test_2_2_a_boundary_of_stored_records_is_accepted(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.server.node.group.storage.flush()
        client.server.node.group.state.load()
        inside = "0000000000000001_0000000000000004"
        assert refused(await client.publish(inside)) == (400, "INVALID_OFFSET")
        assert (await client.publish(client.offsets[1])).status_code == 204


async def test_2_2_a_malformed_content_type_is_400(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        path = f"{STREAM}/snapshot/{client.offsets[1]}"
        answer = await client.http.put(path, content=b"x", headers={"Content-Type": "text"})
        assert refused(answer) == (400, "INVALID_CONTENT_TYPE")


async def test_2_2_a_stream_that_does_not_exist_is_404(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        for path in ("/bucket/none", "/nowhere/s"):
            answer = await client.publish(START, path=path)
            assert refused(answer) == (404, "STREAM_NOT_FOUND")


@pytest.mark.parametrize("size", [5, MIB])
async def test_2_2_an_offset_beyond_the_tail_is_409(tmp_path: Path, size: int) -> None:
    async with prepared(tmp_path) as client:
        beyond = "0000000000000004_0000000000000012"
        answer = await client.publish(beyond, b"x" * size)
        assert refused(answer) == (409, "OFFSET_BEYOND_TAIL")
        assert answer.headers["stream-next-offset"] == client.offsets[3]


async def test_2_2_an_offset_below_the_snapshot_is_410(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[2])
        for offset in (START, client.offsets[1]):
            answer = await client.publish(offset)
            assert refused(answer) == (410, "STREAM_OFFSET_GONE")
            assert answer.headers["stream-earliest-offset"] == client.offsets[2]


async def test_2_2_a_snapshot_over_the_limit_is_413_before_it_is_read(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client, client.server.connect() as raw:
        size = 128 * MIB + 1
        await raw.send(
            b"PUT %b/snapshot/%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            % (STREAM.encode(), client.offsets[1].encode(), size)
        )
        answer = await raw.read_response()
        assert (answer.status, answer.code) == (413, "SNAPSHOT_TOO_LARGE")
        assert answer.headers["connection"] == "close"


async def test_2_2_a_snapshot_that_grows_over_the_limit_is_413(tmp_path: Path) -> None:
    async with prepared(tmp_path, max_snapshot_bytes=MIB) as client:
        answer = await client.publish(client.offsets[1], pieces(MIB + 1))
        assert refused(answer) == (413, "SNAPSHOT_TOO_LARGE")
        assert (await client.publish(client.offsets[1], pieces(MIB))).status_code == 204


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 256 * 1024 + 1, 3 * MIB])
@pytest.mark.parametrize("told", [True, False])
async def test_2_2_snapshots_of_all_sizes_are_read_back_unchanged(
    tmp_path: Path, size: int, told: bool
) -> None:
    async with prepared(tmp_path) as client:
        content = await whole(size)
        answer = await client.publish(client.offsets[1], content if told else pieces(size))
        assert answer.status_code == 204
        for _ in ("from memory", "from the store"):
            read = await client.http.get(f"{STREAM}/snapshot", follow_redirects=True)
            assert read.content == content
            assert read.headers["content-length"] == str(size)
            await client.server.node.group.storage.flush()


async def test_2_2_the_default_content_type_is_octet_stream(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        path = f"{STREAM}/snapshot/{client.offsets[1]}"
        assert (await client.http.put(path, content=b"x")).status_code == 204
        assert (await client.http.get(path)).headers["content-type"] == "application/octet-stream"


async def test_2_2_a_closed_stream_can_be_snapshot_at_its_end(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.http.post(STREAM, headers={"Stream-Closed": "true"})
        assert (await client.publish(client.offsets[3])).status_code == 204
        read = await client.http.get(f"{STREAM}/snapshot/{client.offsets[3]}")
        assert read.headers["stream-closed"] == read.headers["stream-up-to-date"] == "true"
        at_the_end = await client.http.get(STREAM, params={"offset": client.offsets[3]})
        assert (at_the_end.status_code, at_the_end.headers["stream-closed"]) == (200, "true")


async def test_2_2_each_message_of_a_json_append_is_a_boundary(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.http.put("/bucket/j", headers=JSON)
        await client.http.post("/bucket/j", content=b'[1, "two", 3]', headers=JSON)
        second = "0000000000000002_0000000000000008"
        assert (await client.publish(second, path="/bucket/j")).status_code == 204
        rest = await client.http.get("/bucket/j", params={"offset": second})
        assert rest.json() == [3]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?offset=-1",
        "?offset={one}",
        "?offset=-1&live=long-poll",
        "?offset={one}&live=long-poll",
        "?offset={one}&live=sse",
    ],
)
async def test_2_2_offsets_before_the_snapshot_are_410_for_all_readers(
    tmp_path: Path, query: str
) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[2])
        answer = await client.http.get(STREAM + query.format(one=client.offsets[1]))
        assert refused(answer) == (410, "STREAM_OFFSET_GONE")
        assert answer.headers["stream-earliest-offset"] == client.offsets[2]
        rest = await client.http.get(STREAM, params={"offset": client.offsets[2]})
        assert (rest.status_code, rest.content) == (200, b"six")


async def test_2_2_a_position_that_was_never_a_boundary_stays_400(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[2])
        answer = await client.http.get(STREAM + "?offset=0000000000000002_0000000000000005")
        assert refused(answer) == (400, "INVALID_OFFSET")


async def test_2_2_a_new_snapshot_replaces_the_old_one_at_once(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[1], b"old")
        await client.publish(client.offsets[3], b"new")
        old = await client.http.get(f"{STREAM}/snapshot/{client.offsets[1]}")
        assert refused(old) == (404, "SNAPSHOT_NOT_FOUND")
        latest = await client.http.get(f"{STREAM}/snapshot", follow_redirects=True)
        assert latest.content == b"new"


async def test_2_2_appends_continue_during_an_upload(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:

        async def body() -> AsyncIterator[bytes]:
            yield bytes(MIB)
            await client.append(b"new")
            yield bytes(MIB)

        assert (await client.publish(client.offsets[3], body())).status_code == 204
        rest = await client.http.get(STREAM, params={"offset": client.offsets[3]})
        assert rest.content == b"new"


async def test_2_2_the_address_of_a_snapshot_is_not_a_stream(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        for method, path, allow in (
            ("POST", f"{STREAM}/snapshot/{START}", "GET, HEAD, PUT, DELETE, OPTIONS"),
            ("PUT", f"{STREAM}/snapshot", "GET, HEAD, OPTIONS"),
            ("DELETE", f"{STREAM}/bootstrap", "GET, HEAD, OPTIONS"),
        ):
            answer = await client.http.request(method, path)
            assert refused(answer) == (405, "METHOD_NOT_ALLOWED")
            assert answer.headers["allow"] == allow
            assert (await client.http.options(path)).headers["allow"] == allow
        for path in (f"{STREAM}/other", f"{STREAM}/snapshot/x/y", f"{STREAM}/bootstrap/x"):
            assert refused(await client.http.get(path)) == (404, "NOT_FOUND")
        on_v1 = await client.http.put("/v1/stream/bucket/s/snapshot", headers=TEXT)
        assert on_v1.status_code == 201


# -- 2.3 to 2.6 -------------------------------------------------------------------------------


async def test_2_3_the_latest_snapshot_is_a_307_to_its_offset(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[2])
        for answer in (
            await client.http.get(f"{STREAM}/snapshot"),
            await client.http.head(f"{STREAM}/snapshot"),
        ):
            assert answer.status_code == 307
            assert answer.headers["location"] == f"{STREAM}/snapshot/{client.offsets[2]}"
            assert answer.headers["stream-snapshot-offset"] == client.offsets[2]


async def test_2_3_without_a_snapshot_or_stream_it_is_404(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        assert refused(await client.http.get(f"{STREAM}/snapshot")) == (404, "SNAPSHOT_NOT_FOUND")
        answer = await client.http.get("/bucket/none/snapshot")
        assert refused(answer) == (404, "STREAM_NOT_FOUND")


async def test_2_4_head_names_the_latest_snapshot_if_there_is_one(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        assert "stream-snapshot-offset" not in (await client.http.head(STREAM)).headers
        await client.publish(client.offsets[2])
        head = await client.http.head(STREAM)
        assert head.headers["stream-snapshot-offset"] == client.offsets[2]


async def test_2_5_reading_a_snapshot_is_200_with_its_type_and_offsets(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[2])
        path = f"{STREAM}/snapshot/{client.offsets[2]}"
        answer = await client.http.get(path)
        assert (answer.status_code, answer.content) == (200, b"state")
        assert answer.headers["content-type"] == "text/plain"
        assert answer.headers["stream-snapshot-offset"] == client.offsets[2]
        assert answer.headers["stream-next-offset"] == client.offsets[2]
        assert answer.headers["stream-up-to-date"] == "false"
        head = await client.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        await client.publish(client.offsets[3])
        newer = await client.http.get(f"{STREAM}/snapshot/{client.offsets[3]}")
        assert newer.headers["stream-up-to-date"] == "true"


@pytest.mark.parametrize("offset", [START, "0000000000000002_0000000000000007", "-1", "x"])
async def test_2_5_reading_an_absent_snapshot_is_404(tmp_path: Path, offset: str) -> None:
    async with prepared(tmp_path) as client:
        for _ in ("without one", "with another"):
            answer = await client.http.get(f"{STREAM}/snapshot/{offset}")
            assert refused(answer) == (404, "SNAPSHOT_NOT_FOUND")
            await client.publish(client.offsets[2])
        answer = await client.http.get(f"/bucket/none/snapshot/{offset}")
        assert refused(answer) == (404, "STREAM_NOT_FOUND")


async def test_2_6_deleting_the_latest_snapshot_is_409(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[2])
        path = f"{STREAM}/snapshot/{client.offsets[2]}"
        assert refused(await client.http.delete(path)) == (409, "SNAPSHOT_IN_USE")
        assert (await client.http.get(path)).content == b"state"


async def test_2_6_deleting_any_other_snapshot_is_404(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[1])
        await client.publish(client.offsets[2])
        for offset in (client.offsets[1], client.offsets[3], "x"):
            answer = await client.http.delete(f"{STREAM}/snapshot/{offset}")
            assert refused(answer) == (404, "SNAPSHOT_NOT_FOUND")
        answer = await client.http.delete(f"/bucket/none/snapshot/{START}")
        assert refused(answer) == (404, "STREAM_NOT_FOUND")


async def test_5_an_offset_may_be_percent_encoded(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        encoded = client.offsets[2].replace("_", "%5F")
        assert (await client.publish(encoded)).status_code == 204
        assert (await client.http.get(f"{STREAM}/snapshot/{encoded}")).content == b"state"


# -- forks ------------------------------------------------------------------------------------


async def fork(client: Client, name: str, offset: str | None, source: str = STREAM) -> int:
    headers = {"Stream-Forked-From": source}
    if offset is not None:
        headers["Stream-Fork-Offset"] = offset
    return (await client.http.put(name, headers=headers)).status_code


async def test_a_fork_of_a_trimmed_stream_has_its_snapshot(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[1])
        assert await fork(client, "/bucket/f", client.offsets[2]) == 201
        assert (await client.http.get("/bucket/f")).status_code == 410
        await client.http.delete(STREAM)
        read = await client.http.get("/bucket/f/snapshot", follow_redirects=True)
        assert read.content == b"state"
        rest = await client.http.get("/bucket/f", params={"offset": client.offsets[1]})
        assert rest.content == b"two"


async def test_a_fork_cannot_begin_below_the_snapshot(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await client.publish(client.offsets[2])
        headers = {"Stream-Forked-From": STREAM, "Stream-Fork-Offset": client.offsets[1]}
        answer = await client.http.put("/bucket/f", headers=headers)
        assert refused(answer) == (410, "STREAM_OFFSET_GONE")
        assert answer.headers["stream-earliest-offset"] == client.offsets[2]


async def test_an_earlier_fork_still_reads_records_that_its_source_trimmed(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        await fork(client, "/bucket/f", client.offsets[2])
        await client.publish(client.offsets[3])
        assert (await client.http.get("/bucket/f")).content == b"onetwo"
        assert (await client.publish(client.offsets[1], path="/bucket/f")).status_code == 204
        rest = await client.http.get("/bucket/f", params={"offset": client.offsets[1]})
        assert rest.content == b"two"


# -- uploads ----------------------------------------------------------------------------------


async def test_an_upload_whose_client_left_is_removed(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client:
        group = client.server.node.group
        async with client.server.connect() as raw:
            head = f"PUT {STREAM}/snapshot/{client.offsets[1]} HTTP/1.1\r\nHost: x\r\n"
            await raw.send(head.encode() + b"Content-Length: 3000000\r\n\r\n" + bytes(MIB))
            await until(lambda: group.state.uploads.get(keys.number(2)))
        await until(lambda: group.state.uploads.get(keys.number(2)) is None)
        assert refused(await client.http.get(f"{STREAM}/snapshot")) == (404, "SNAPSHOT_NOT_FOUND")


async def test_a_body_that_stops_coming_is_408(tmp_path: Path) -> None:
    async with prepared(tmp_path, body_timeout_ms=200) as client:
        group = client.server.node.group
        async with client.server.connect() as raw:
            head = f"PUT {STREAM}/snapshot/{client.offsets[1]} HTTP/1.1\r\nHost: x\r\n"
            await raw.send(head.encode() + b"Content-Length: 3000000\r\n\r\n" + bytes(MIB))
            answer = await raw.read_response()
            assert (answer.status, answer.code) == (408, "BODY_TIMEOUT")
        await until(lambda: group.state.uploads.get(keys.number(2)) is None)


async def test_an_upload_beyond_the_limit_is_503(tmp_path: Path) -> None:
    async with prepared(tmp_path, max_snapshot_uploads=1) as client:
        begun, go_on = trio.Event(), trio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield bytes(MIB)
            begun.set()
            await go_on.wait()
            yield b"end"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.publish, client.offsets[1], body())
            await begun.wait()
            answer = await client.publish(client.offsets[2])
            assert refused(answer) == (503, "TOO_MANY_UPLOADS")
            assert answer.headers["retry-after"] == "1"
            go_on.set()
        assert (await client.publish(client.offsets[2])).status_code == 204


async def test_a_client_that_waits_for_100_is_refused_without_sending(tmp_path: Path) -> None:
    async with prepared(tmp_path) as client, client.server.connect() as raw:
        expecting = (
            "PUT {}/snapshot/{} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            "Content-Length: 5\r\n\r\n"
        )
        await raw.send(expecting.format(STREAM, client.offsets[1]).encode())
        assert (await raw.read_head()).status == 100
        await raw.send(b"state")
        assert (await raw.read_response()).status == 204
        await raw.send(expecting.format(STREAM, START).encode())
        assert (await raw.read_response()).status == 410
