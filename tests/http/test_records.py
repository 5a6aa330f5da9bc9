"""Reads for programs: records with their lengths, and from a record by its number."""

from __future__ import annotations

import json
import struct
from itertools import accumulate
from pathlib import Path
from random import Random

import httpx
import pytest

from streamd.config.settings import ColdConfig
from tests.http.serving import serving
from tests.objectstore.test_serving import SMALL, until_cold

BYTES = {"Content-Type": "application/octet-stream"}
JSON = {"Content-Type": "application/json"}
FRAMED = "application/vnd.streamd.records"
STREAM = "/bucket/s"


def parts_of(body: bytes) -> list[bytes]:
    """The records of a framed answer."""
    (count,) = struct.unpack_from(">I", body)
    lengths = struct.unpack_from(f">{count}I", body, 4)
    records = body[4 + 4 * count :]
    assert len(records) == sum(lengths)
    ends = list(accumulate(lengths))
    return [records[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def token(record: int, byte: int) -> str:
    return f"{record:016d}_{byte:016d}"


async def records_from(http: httpx.AsyncClient, path: str, start: str, most: int) -> list[bytes]:
    """All records from an offset on, read in framed answers."""
    found: list[bytes] = []
    while True:
        query = {"offset": start, "framing": "lengths", "max_bytes": str(most)}
        answer = await http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == FRAMED
        assert answer.headers["stream-first-offset"] == start
        records = parts_of(answer.content)
        found += records
        record, byte = map(int, start.split("_"))
        after = token(record + len(records), byte + sum(map(len, records)))
        start = answer.headers["stream-next-offset"]
        assert start == after
        if "stream-up-to-date" in answer.headers:
            return found
        assert records


async def make_streams(http: httpx.AsyncClient, contents: list[bytes]) -> None:
    """A stream of `contents`, and a fork of it whose first own record follows a part of one."""
    await http.put("/bucket")
    await http.put(STREAM, headers=BYTES)
    for content in contents:
        assert (await http.post(STREAM, headers=BYTES, content=content)).is_success
    end = token(3, sum(map(len, contents[:3])))
    cut = {"Stream-Forked-From": STREAM, "Stream-Fork-Offset": end, "Stream-Fork-Sub-Offset": "2"}
    assert (await http.put("/bucket/fork", headers=cut)).status_code == 201
    await http.post("/bucket/fork", headers=BYTES, content=b"own")


async def check_streams(http: httpx.AsyncClient, contents: list[bytes]) -> None:
    starts = [token(n, sum(map(len, contents[:n]))) for n in range(len(contents) + 1)]
    forked = [*contents[:3], contents[3][:2], b"own"]
    for most in (1, 700, 1 << 20):
        for number, start in enumerate(starts):
            assert await records_from(http, STREAM, start, most) == contents[number:]
        assert await records_from(http, "/bucket/fork", token(0, 0), most) == forked
    for number, start in enumerate([*starts, starts[-1]]):
        by_number = await http.get(f"{STREAM}?record={number}&framing=lengths")
        assert by_number.headers["stream-first-offset"] == start
        # An answer from the cold store may end where a slice ends.
        records = parts_of(by_number.content)
        assert records or start == starts[-1]
        assert records == contents[number : number + len(records)]
        plain = await http.get(f"{STREAM}?record={number}")
        assert plain.headers["stream-first-offset"] == start
        assert plain.headers["content-type"] == BYTES["Content-Type"]
        assert plain.content or start == starts[-1]
        assert b"".join(contents[number:]).startswith(plain.content)
        head = await http.head(f"{STREAM}?record={number}")
        assert head.headers["stream-first-offset"] == start
        assert head.headers["stream-next-offset"] == starts[-1]


CONTENTS = [Random(n).randbytes(200 + 37 * n) for n in range(12)]


async def test_byte_records_keep_their_lengths_wherever_they_are(tmp_path: Path) -> None:
    """In memory; in the store after a restart; and partly in each."""
    async with serving(tmp_path) as server, server.client() as http:
        await make_streams(http, CONTENTS)
        await check_streams(http, CONTENTS)
    async with serving(tmp_path) as server, server.client() as http:
        await check_streams(http, CONTENTS)
        await http.post(STREAM, headers=BYTES, content=b"later")
        await check_streams(http, [*CONTENTS, b"later"])


async def test_records_in_the_cold_store_keep_their_lengths(tmp_path: Path) -> None:
    cold = ColdConfig(backend="fs", fs_path=str(tmp_path / "cold"), **SMALL)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        await make_streams(http, CONTENTS)
        await until_cold(server)
    async with serving(tmp_path, cold=cold) as server, server.client() as http:
        await check_streams(http, CONTENTS)


async def test_json_messages_come_with_the_comma_that_offsets_count(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as http:
        await http.put("/v1/stream/events", headers=JSON, content=b'[{"n": 1}, 22 ,"three"]')
        answer = await http.get("/v1/stream/events?framing=lengths")
        assert answer.headers["stream-content-type"] == "application/json"
        assert parts_of(answer.content) == [b'{"n": 1},', b"22,", b'"three",']
        assert answer.headers["stream-next-offset"] == token(3, 20)
        second = await http.get("/v1/stream/events?record=1")
        assert second.headers["stream-first-offset"] == token(1, 9)
        assert second.content == b'[22,"three"]'
        empty = await http.get("/v1/stream/events?record=99&framing=lengths")
        assert (parts_of(empty.content), empty.headers["stream-up-to-date"]) == ([], "true")
        inside = await http.get(f"/v1/stream/events?framing=lengths&offset={token(1, 11)}")
        assert inside.headers["stream-first-offset"] == token(1, 9)


async def test_trimmed_records_are_410_by_number_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as http:
        await make_streams(http, CONTENTS)
        earliest = token(4, sum(map(len, CONTENTS[:4])))
        assert (await http.put(f"{STREAM}/snapshot/{earliest}", content=b"x")).is_success
        for method in ("GET", "HEAD"):
            gone = await http.request(method, f"{STREAM}?record=3")
            assert gone.status_code == 410
            assert gone.headers["stream-earliest-offset"] == earliest
        first = await http.get(f"{STREAM}?record=4&framing=lengths")
        assert parts_of(first.content) == CONTENTS[4:]


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("record=-1", "record must be"),
        ("record=x", "record must be"),
        ("record=1&offset=-1", "offset and record"),
        ("record=1&live=long-poll", "a live read needs an offset"),
        ("framing=frames", "framing must be"),
        ("framing=lengths&live=sse&offset=-1", "framing and live"),
    ],
)
async def test_a_wrong_query_is_400_with_the_reason(tmp_path: Path, query: str, fault: str) -> None:
    async with serving(tmp_path) as server, server.client() as http:
        await http.put("/v1/stream/s", headers=BYTES)
        answer = await http.get(f"/v1/stream/s?{query}")
        assert answer.status_code == 400
        assert fault in answer.json()["error"]["message"]


async def test_a_framed_answer_has_about_a_mebibyte_whatever_is_requested(tmp_path: Path) -> None:
    message = json.dumps("x" * 97).encode()
    async with serving(tmp_path) as server, server.client() as http:
        await http.put("/v1/stream/s", headers=JSON)
        for _ in range(3):
            body = b"[%b]" % b",".join([message] * 8000)
            assert (await http.post("/v1/stream/s", headers=JSON, content=body)).is_success
        answer = await http.get("/v1/stream/s?framing=lengths&max_bytes=16777216")
        assert len(parts_of(answer.content)) == (1 << 20) // 100


async def test_the_tag_in_a_listing_is_that_of_head_and_differs_for_a_recreated_stream(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server, server.client() as http:
        await make_streams(http, CONTENTS[:4])
        tags = []
        for _ in range(2):
            page = (await http.get("/bucket/streams?prefix=s")).json()
            tags.append(page["streams"][0]["etag"])
            assert tags[-1] == (await http.head(STREAM)).headers["etag"]
            await http.delete("/bucket/fork")
            await http.delete(STREAM)
            await make_streams(http, CONTENTS[:4])
        assert tags[0].split(":")[1:] == tags[1].split(":")[1:]
        assert tags[0] != tags[1]
