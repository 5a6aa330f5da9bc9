"""ETags, If-Match and If-None-Match over HTTP."""

from __future__ import annotations

import struct
from pathlib import Path

import httpx
import pytest

from tests.http.serving import serving

TEXT = {"Content-Type": "text/plain"}
STREAM = "/v1/stream/s"
PRODUCER = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}


async def state_tag(client: httpx.AsyncClient, path: str = STREAM) -> str:
    return (await client.head(path)).headers["etag"]


async def test_every_write_answers_with_the_tag_that_head_then_shows(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put("/bucket")
        path = "/bucket/s"
        for method, target, headers, body in (
            ("PUT", path, TEXT, b""),
            ("PUT", path, TEXT, b""),
            ("POST", path, TEXT, b"one"),
            ("POST", path, {**TEXT, **PRODUCER}, b"two"),
            ("POST", path, {**TEXT, **PRODUCER}, b"two"),
            ("POST", path + "/append-batch", TEXT, b"\0\0\0\1x"),
            ("POST", path, {"Stream-Closed": "true"}, b""),
            ("POST", path, {"Stream-Closed": "true"}, b""),
        ):
            written = await client.request(method, target, headers=headers, content=body)
            assert written.status_code < 300
            assert written.headers["etag"] == await state_tag(client, path)
        assert (await client.get(path)).headers["etag"] == written.headers["etag"]
        assert written.headers["etag"].endswith(':c"')


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_a_write_with_an_earlier_tag_is_412_and_changes_nothing(
    method: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        old = (await client.put(STREAM, headers=TEXT)).headers["etag"]
        await client.post(STREAM, content=b"one", headers=TEXT)
        body = b"two" if method == "POST" else b""
        refused = await client.request(
            method, STREAM, headers={**TEXT, "If-Match": old}, content=body
        )
        assert refused.status_code == 412
        assert refused.json()["error"]["code"] == "PRECONDITION_FAILED"
        current = refused.headers["etag"]
        assert current == await state_tag(client)
        assert refused.headers["stream-next-offset"] == await server.tail(STREAM)
        assert await server.content(STREAM) == b"one"
        done = await client.request(
            method, STREAM, headers={**TEXT, "If-Match": current}, content=body
        )
        assert done.status_code in (200, 204)


async def test_writers_that_compare_and_swap_lose_no_update(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        tag = (await client.put(STREAM, headers=TEXT)).headers["etag"]
        for number in range(5):
            for body in (b"%d," % number, b"late"):
                answer = await client.post(STREAM, content=body, headers={**TEXT, "If-Match": tag})
                assert answer.status_code == (412 if body == b"late" else 204)
                fresh = answer.headers["etag"]
            tag = fresh
        assert await server.content(STREAM) == b"0,1,2,3,4,"


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ("{}", 204),
        ("*", 204),
        ('"other", {}', 204),
        ('"a,b",{},"c"', 204),
        ("W/{}", 412),
        ('"other"', 412),
        ("nonsense", 412),
        ("", 412),
    ],
)
async def test_if_match_compares_strongly(form: str, status: int, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put(STREAM, headers=TEXT)
        condition = form.format(await state_tag(client))
        answer = await client.post(STREAM, content=b"x", headers={**TEXT, "If-Match": condition})
        assert answer.status_code == status


async def test_the_tag_of_a_read_up_to_the_tail_satisfies_a_condition(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put(STREAM, headers=TEXT, content=b"x" * 3000)
        middle = await server.tail(STREAM)
        await client.post(STREAM, content=b"y" * 3000, headers=TEXT)
        partial = await client.get(STREAM + "?max_bytes=10")
        assert partial.headers["stream-next-offset"] == middle
        rest = await client.get(STREAM + f"?offset={middle}", headers={"Accept-Encoding": "gzip"})
        assert rest.headers["content-encoding"] == "gzip"
        for tag, status in ((partial.headers["etag"], 412), (rest.headers["etag"], 204)):
            answer = await client.post(STREAM, content=b"z", headers={**TEXT, "If-Match": tag})
            assert answer.status_code == status


async def test_a_condition_on_an_absent_stream_is_412(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put("/bucket")
        for path in ("/v1/stream/none", "/v1/stream/no/ne", "/bucket/none"):
            for method in ("POST", "PUT", "DELETE"):
                body = b"x" if method == "POST" else b""
                answer = await client.request(
                    method, path, headers={**TEXT, "If-Match": "*"}, content=body
                )
                assert answer.status_code == 412, (method, path)
                assert "etag" not in answer.headers
        assert server.node.group.state.header.streams == 0


async def test_a_retry_of_a_producer_is_answered_as_the_first_try(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        tag = (await client.put(STREAM, headers=TEXT)).headers["etag"]
        headers = {**TEXT, **PRODUCER, "If-Match": tag}
        first = await client.post(STREAM, content=b"one", headers=headers)
        await client.post(STREAM, content=b"other", headers=TEXT)
        retry = await client.post(STREAM, content=b"one", headers=headers)
        assert (first.status_code, retry.status_code) == (200, 204)
        for name in ("etag", "stream-next-offset", "producer-seq"):
            assert retry.headers[name] == first.headers[name]


async def test_too_many_tags_are_400(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put(STREAM, headers=TEXT)
        headers = {**TEXT, "If-Match": ", ".join(['"1"'] * 65)}
        assert (await client.post(STREAM, content=b"x", headers=headers)).status_code == 400


async def test_head_is_304_while_the_stream_is_unchanged(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        tag = (await client.put(STREAM, headers=TEXT)).headers["etag"]
        for change in (
            {"content": b"one", "headers": TEXT},
            {"headers": {"Stream-Closed": "true"}},
        ):
            for form in (tag, f"W/{tag}", f'"other", {tag}', "*"):
                unchanged = await client.head(STREAM, headers={"If-None-Match": form})
                assert (unchanged.status_code, unchanged.headers["etag"]) == (304, tag)
                assert unchanged.headers["cache-control"] == "no-store"
            await client.post(STREAM, **change)
            changed = await client.head(STREAM, headers={"If-None-Match": tag})
            assert changed.status_code == 200
            tag = changed.headers["etag"]


# -- batches ----------------------------------------------------------------------------------


def frames(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


BATCH = "/bucket/s/append-batch"


async def start(client: httpx.AsyncClient, kind: str = "text/plain") -> None:
    await client.put("/bucket")
    await client.put("/bucket/s", headers={"Content-Type": kind}, content=b"[0]")


async def test_each_frame_becomes_a_record(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await start(client)
        answer = await client.post(BATCH, headers=TEXT, content=frames(b"one", b"three", b"x"))
        assert answer.status_code == 200
        body = answer.json()
        assert body == {
            "records": 3,
            "first_offset": f"{1:016}_{3:016}",
            "last_offset": f"{3:016}_{11:016}",
            "next_offset": f"{4:016}_{12:016}",
        }
        assert answer.headers["stream-first-offset"] == body["first_offset"]
        assert answer.headers["stream-last-offset"] == body["last_offset"]
        assert answer.headers["stream-next-offset"] == body["next_offset"]
        for offset, content in ((body["first_offset"], b"onethreex"), (body["last_offset"], b"x")):
            assert await server.content(f"/bucket/s?offset={offset}") == content
        first = await client.get(f"/bucket/s?offset={body['first_offset']}&max_bytes=1")
        assert first.content == b"one"


async def test_a_frame_of_json_is_one_message(tmp_path: Path) -> None:
    kind = {"Content-Type": "application/json"}
    async with serving(tmp_path) as server, server.client() as client:
        await start(client, "application/json")
        batch = frames(b' {"a": 1.0} ', b"[1, 2]", b"12345678901234567890", b"[]")
        answer = await client.post(BATCH, headers=kind, content=batch)
        assert answer.json()["records"] == 4
        assert await server.content("/bucket/s") == b'[0,{"a": 1.0},[1, 2],12345678901234567890,[]]'
        for payload in (b"{", b"1 2", b"", b'"\xff"', b" "):
            refused = await client.post(BATCH, headers=kind, content=frames(b"1", payload))
            assert refused.status_code == 400


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "EMPTY_BODY"),
        (b"\0", "INVALID_FRAME"),
        (b"\0\0\0", "INVALID_FRAME"),
        (b"\0\0\0\2x", "INVALID_FRAME"),
        (b"\xff\xff\xff\xffx", "INVALID_FRAME"),
        (frames(b""), "INVALID_FRAME"),
        (frames(b"x", b"", b"y"), "INVALID_FRAME"),
        (frames(b"x") + b"\0\0", "INVALID_FRAME"),
        (frames(*[b"x"] * 513), "TOO_MANY_FRAMES"),
    ],
)
async def test_malformed_frames_are_400_and_append_nothing(
    body: bytes, code: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await start(client)
        refused = await client.post(BATCH, headers=TEXT, content=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, code)
        assert await server.content("/bucket/s") == b"[0]"


async def test_a_batch_has_up_to_512_frames(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await start(client)
        answer = await client.post(BATCH, headers=TEXT, content=frames(*[b"x"] * 512))
        assert answer.json()["records"] == 512


async def test_a_batch_is_refused_as_an_append_is(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await start(client)
        tag = await state_tag(client, "/bucket/s")
        await client.post("/bucket/s", headers={**TEXT, "Stream-Seq": "5"}, content=b"x")
        for headers, status in (
            ({}, 400),
            ({"Content-Type": "application/json"}, 409),
            ({**TEXT, "Stream-Seq": "5"}, 409),
            ({**TEXT, "If-Match": tag}, 412),
            ({**TEXT, **PRODUCER, "Producer-Seq": "3"}, 409),
        ):
            refused = await client.post(BATCH, headers=headers, content=frames(b"1", b"2"))
            assert refused.status_code == status, headers
        missing = BATCH.replace("/s/", "/none/")
        assert (await client.post(missing, headers=TEXT, content=frames(b"1"))).status_code == 404
        assert await server.content("/bucket/s") == b"[0]x"


async def test_a_producers_batch_counts_once_and_can_close(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await start(client)
        headers = {**TEXT, **PRODUCER, "Stream-Closed": "true"}
        body = frames(b"one", b"two")
        first = await client.post(BATCH, headers=headers, content=body)
        retry = await client.post(BATCH, headers=headers, content=body)
        assert (first.status_code, retry.status_code) == (200, 204)
        assert first.headers["stream-closed"] == "true"
        for name in ("etag", "stream-closed", "stream-first-offset", "stream-last-offset",
                     "stream-next-offset", "producer-epoch", "producer-seq"):  # fmt: skip
            assert retry.headers[name] == first.headers[name]
        assert await server.content("/bucket/s") == b"[0]onetwo"


async def test_on_the_base_surface_append_batch_is_part_of_a_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        path = "/v1/stream/bucket/s/append-batch"
        await client.put(path, headers=TEXT)
        assert (await client.post(path, headers=TEXT, content=b"raw")).status_code == 204
        assert await server.content(path) == b"raw"
