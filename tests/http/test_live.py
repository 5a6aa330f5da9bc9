"""Live reads over HTTP, and the metrics of all traffic."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from streamd.client.core.sse import Events
from streamd.http.streams.live import Hub, Reader
from streamd.node.node import wall_clock_ms
from streamd.streams.commands import Change
from streamd.streams.model import Settings, Stream
from streamd.streams.offsets import START
from tests.http.serving import RawClient, Serving, serving, until

TEXT = {"Content-Type": "text/plain"}
STREAM = "/v1/stream/s"
LONG_POLL = STREAM + "?offset=now&live=long-poll"
SSE = STREAM + "?offset=-1&live=sse"


async def test_a_stream_of_another_group_with_the_same_id_wakes_no_reader() -> None:
    hub = Hub(wall_clock_ms, 10)
    reader, other = Reader((0, 7), START), Reader((1, 7), START)
    hub.add(reader)
    hub.add(other)
    change = Change(Stream(7, Settings("text/plain"), "text/plain", 0, 0, 0), START)
    change.ended = True
    await hub.publish(1, {7: change})
    assert (reader.news, other.news) == (False, True)
    hub.start_over(1)
    assert hub.present
    assert not reader.news
    hub.start_over(0)
    assert reader.news
    assert not hub.present


async def ask(client: RawClient, target: str) -> None:
    await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target.encode())


async def parked(server: Serving) -> None:
    await until(lambda: server.hub.present)


async def make(server: Serving, content: bytes = b"", headers: Mapping[str, str] = TEXT) -> None:
    async with server.client() as client:
        made = await client.put(STREAM, content=content, headers=dict(headers))
        assert made.status_code == 201


def events(body: bytes) -> list[tuple[str, str]]:
    """The events of an SSE body: kind and data."""
    found = []
    for block in body.decode().split("\n\n"):
        fields = [line.partition(":")[::2] for line in block.split("\n") if line[:1] != ":"]
        kinds = [value.strip() for name, value in fields if name == "event"]
        if kinds:
            found.append((kinds[0], "\n".join(value for name, value in fields if name == "data")))
    return found


# -- long-poll ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", ["0", "0.05", "00000.050"])
async def test_a_long_poll_waits_as_long_as_requested(timeout: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(server, b"x")
        started = trio.current_time()
        answer = await client.get(LONG_POLL + f"&timeout={timeout}")
        assert trio.current_time() - started >= float(timeout)
        assert (answer.status_code, answer.headers["stream-up-to-date"]) == (204, "true")
        assert answer.headers["stream-next-offset"] == await server.tail(STREAM)


async def test_a_long_poll_waits_no_longer_than_the_server_allows(tmp_path: Path) -> None:
    async with serving(tmp_path, long_poll_timeout_ms=50) as server, server.client() as client:
        await make(server)
        assert (await client.get(LONG_POLL + "&timeout=9999")).status_code == 204
        assert (await client.get(LONG_POLL)).status_code == 204


async def test_an_append_wakes_a_long_poll(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as reader, server.client() as client:
        await make(server, b"before")
        await ask(reader, LONG_POLL)
        await parked(server)
        appended = await client.post(STREAM, content=b"news", headers=TEXT)
        answer = await reader.read_response()
        assert (answer.status, answer.body) == (200, b"news")
        assert answer.headers["stream-next-offset"] == appended.headers["stream-next-offset"]
        assert int(answer.headers["stream-cursor"]) > 0


async def test_the_close_wakes_a_long_poll(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as reader, server.client() as client:
        await make(server)
        await ask(reader, LONG_POLL)
        await parked(server)
        await client.post(STREAM, headers={"Stream-Closed": "true"})
        answer = await reader.read_response()
        assert (answer.status, answer.headers["stream-closed"]) == (204, "true")


async def test_a_delete_wakes_a_long_poll(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as reader, server.client() as client:
        await make(server)
        await ask(reader, LONG_POLL)
        await parked(server)
        await client.delete(STREAM)
        answer = await reader.read_response()
        assert (answer.status, answer.code) == (404, "STREAM_NOT_FOUND")


async def test_expiry_wakes_live_readers(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as server,
        server.connect() as waiting,
        server.connect() as tailing,
    ):
        await make(server, headers={**TEXT, "Stream-TTL": "60"})
        await ask(waiting, LONG_POLL)
        await ask(tailing, SSE)
        await until(lambda: sum(server.hub.reading_now.values()) == 2)
        await parked(server)
        server.clock.ahead_ms += 3_600_000
        assert (await waiting.read_response()).status == 404
        assert (await tailing.read_response()).status == 200


# -- cursors --------------------------------------------------------------------------------------


async def test_a_cursor_always_moves_beyond_the_one_echoed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(server)
        cursors = []
        echoed = ""
        for _ in range(5):
            answer = await client.get(LONG_POLL + "&timeout=0" + echoed)
            cursors.append(int(answer.headers["stream-cursor"]))
            echoed = f"&cursor={cursors[-1]}"
        assert cursors == sorted(set(cursors))
        server.clock.ahead_ms += 7 * 24 * 3_600_000
        later = await client.get(LONG_POLL + "&timeout=0" + echoed)
        assert int(later.headers["stream-cursor"]) > cursors[-1]


@pytest.mark.parametrize("echoed", ["", "soon", "-1", "1.5"])
async def test_a_foreign_cursor_is_ignored(echoed: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(server)
        answer = await client.get(LONG_POLL + f"&timeout=0&cursor={echoed}")
        assert answer.status_code == 204
        assert 0 < int(answer.headers["stream-cursor"]) < 10**9


# -- server-sent events ---------------------------------------------------------------------------


async def test_sse_sends_old_records_new_records_and_the_close(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as reader, server.client() as client:
        await make(server, b"old\nlines")
        await ask(reader, SSE)
        await parked(server)
        await client.post(STREAM, content=b"new", headers=TEXT)
        await client.post(STREAM, content=b"last", headers={**TEXT, "Stream-Closed": "true"})
        answer = await reader.read_response()
        assert answer.headers["content-type"] == "text/event-stream"
        told = events(answer.body)
        assert [data for kind, data in told if kind == "data"] == ["old\nlines", "new", "last"]
        controls = [json.loads(data) for kind, data in told if kind == "control"]
        assert [kind for kind, _ in told] == ["data", "control"] * 3
        assert all(control["upToDate"] and control["streamCursor"] for control in controls[:2])
        assert controls[2] == {
            "streamNextOffset": await server.tail(STREAM),
            "upToDate": True,
            "streamClosed": True,
        }


async def test_sse_carries_binary_as_base64_and_names_the_encoding(tmp_path: Path) -> None:
    body = bytes(range(256))
    async with serving(tmp_path) as server, server.client() as client:
        await make(server, body, {"Content-Type": "image/png", "Stream-Closed": "true"})
        answer = await client.get(SSE)
        assert answer.headers["stream-sse-data-encoding"] == "base64"
        assert events(answer.content)[0] == ("data", b64encode(body).decode())


async def test_sse_carries_json_as_an_array_of_messages(tmp_path: Path) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8", "Stream-Closed": "true"}
    async with serving(tmp_path) as server, server.client() as client:
        await make(server, b'[1, {"a": [2]}]', headers)
        answer = await client.get(SSE)
        assert "stream-sse-data-encoding" not in answer.headers
        assert json.loads(events(answer.content)[0][1]) == [1, {"a": [2]}]


async def test_sse_keeps_the_space_at_the_beginning_of_a_line(tmp_path: Path) -> None:
    text = b" one\n  two\n\nthree \n four"
    async with serving(tmp_path) as server, server.client() as client:
        await make(server, text, {**TEXT, "Stream-Closed": "true"})
        answer = await client.get(SSE)
        assert next(Events().feed(answer.content)) == ("data", text)


async def test_sse_sends_heartbeats_while_nothing_is_appended(tmp_path: Path) -> None:
    async with serving(tmp_path, sse_heartbeat_ms=20) as server, server.connect() as reader:
        await make(server)
        await ask(reader, SSE)
        await reader.read_head()
        assert b"upToDate" in await reader.read_chunk()
        assert [await reader.read_chunk() for _ in range(3)] == [b":\n\n"] * 3


async def test_sse_ends_cleanly_at_its_maximum_age(tmp_path: Path) -> None:
    async with serving(tmp_path, sse_lifetime_ms=50) as server, server.client() as client:
        await make(server, b"x")
        answer = await client.get(SSE)
        assert [kind for kind, _ in events(answer.content)] == ["data", "control"]
        assert server.hub.reading_now == {"long-poll": 0, "sse": 0}


async def test_sse_ends_when_the_stream_is_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as reader, server.client() as client:
        await make(server, b"x")
        await ask(reader, SSE)
        await parked(server)
        await client.delete(STREAM)
        assert "streamClosed" not in (await reader.read_response()).body.decode()


async def test_sse_sends_old_records_in_pieces(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await make(server)
        for number in range(10):
            await client.post(STREAM, content=b"%d" % number * 50_000, headers=TEXT)
        await client.post(STREAM, headers={"Stream-Closed": "true"})
        told = events((await client.get(SSE)).content)
        data = "".join(data for kind, data in told if kind == "data")
        assert data == "".join(str(number) * 50_000 for number in range(10))
        assert all(len(data) <= 128 * 1024 for _, data in told)


@pytest.mark.long
async def test_a_slow_reader_gets_the_rest_as_it_reads(tmp_path: Path) -> None:
    # More than the system buffers for a socket, with no record too large for the fan-out.
    appends = [b"%03d" % number * 20_000 for number in range(200)]
    async with (
        serving(tmp_path, sse_heartbeat_ms=3_600_000) as server,
        server.connect(receive_buffer=4096) as reader,
        server.client() as client,
    ):
        await make(server)
        await ask(reader, SSE)
        await parked(server)
        for body in appends:
            await client.post(STREAM, content=body, headers=TEXT)
        assert not server.hub.present, "what its socket does not take must not pile up for it"
        await reader.read_head()
        told = events(await reader.read_through(appends[-1]))
        data = "".join(data for kind, data in told if kind == "data")
        assert data.encode() == b"".join(appends)


@pytest.mark.parametrize("target", [LONG_POLL, SSE])
async def test_a_live_reader_beyond_the_limit_is_refused(target: str, tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_live_readers=1) as server,
        server.connect() as reader,
        server.client() as client,
    ):
        await make(server, b"x")
        await ask(reader, LONG_POLL)
        await parked(server)
        refused = await client.get(target)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "TOO_MANY_READERS"
        assert await server.content(STREAM) == b"x", "reads that do not wait go on"
        await client.post(STREAM, content=b"y", headers={**TEXT, "Stream-Closed": "true"})
        assert (await reader.read_response()).status == 200
        assert (await client.get(target)).status_code in (200, 204)


# -- operations -----------------------------------------------------------------------------------


async def test_health_readiness_and_status(tmp_path: Path) -> None:
    async with serving(tmp_path, node_id=7) as server, server.client() as client:
        await make(server)
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/readyz/local")).json() == {"status": "ready"}
        status = (await client.get("/cluster/status")).json()
        assert (status["node_id"], status["leader_id"], status["role"]) == (7, 7, "leader")
        assert (status["voters"], status["learners"], status["streams"]) == ([7], [], 1)
        assert 0 < status["last_applied"] <= status["commit_index"] <= status["last_log_index"]
        assert status["term"] >= 1
        assert status["cluster_id"]


async def test_unknown_operations_are_404_in_json(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        for path in ("/healthz/x", "/readyz", "/metrics/", "/cluster"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND"), path


async def test_metrics_count_requests_and_live_readers(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as reader, server.client() as client:
        await make(server)
        for _ in range(3):
            await client.post(STREAM, content=b"x", headers=TEXT)
        await client.post(STREAM, content=b"x")  # no content type
        await client.get("/v1/stream/none")
        await client.put("/bucket")
        await client.get("/No")
        await ask(reader, SSE)
        await parked(server)
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        values = dict(re.findall(r"^(streamd_\S+) (\S+)$", answer.text, re.MULTILINE))
        requests = {
            ("stream", "PUT", "201"): 1,
            ("stream", "POST", "204"): 3,
            ("stream", "POST", "400"): 1,
            ("stream", "GET", "404"): 1,
            ("bucket", "PUT", "201"): 1,
            ("none", "GET", "400"): 1,
        }
        for (route, method, status), count in requests.items():
            labels = f'{{method="{method}",route="{route}",status="{status}"}}'
            assert float(values["streamd_http_requests_total" + labels]) == count
        assert float(values["streamd_append_latency_seconds_count"]) == 3
        assert float(values["streamd_commit_batch_commands_count"]) >= 5
        assert float(values["streamd_fsync_latency_seconds_count"]) >= 5
        assert float(values['streamd_live_readers{mode="sse"}']) == 1
        assert float(values['streamd_live_readers{mode="long-poll"}']) == 0
        assert float(values["streamd_http_received_bytes_total"]) > 500
        assert float(values["streamd_http_sent_bytes_total"]) > 500
        assert float(values["streamd_http_connections"]) == 2
        assert float(values["streamd_streams"]) == 1
