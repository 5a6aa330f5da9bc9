"""Offsets that the server did not issue: past the tail, or inside a record.

Existing clients rely on the answers of the reference server: see decision 005 in docs/decisions.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.http.serving import serving
from tests.http.test_live import ask, events, parked
from tests.jepsen_like.cluster_processes import ClusterProcesses

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
CLOSE = {"Stream-Closed": "true"}
STREAM = "/v1/stream/s"


def offset(record: int, byte: int) -> str:
    return f"{record:016}_{byte:016}"


TAIL = offset(1, 3)
PAST_THE_TAIL = [offset(1, 4), offset(2, 3), offset(7, 7), offset(10**16 - 1, 10**16 - 1)]


class Told(NamedTuple):
    """An answer's headers about the reader's position."""

    status: int
    body: bytes
    next_offset: str | None
    up_to_date: str | None
    closed: str | None


def told(response: httpx.Response) -> Told:
    headers = response.headers
    return Told(
        response.status_code,
        response.content,
        headers.get("stream-next-offset"),
        headers.get("stream-up-to-date"),
        headers.get("stream-closed"),
    )


@pytest.mark.parametrize("given", PAST_THE_TAIL)
def test_an_offset_past_the_tail_is_treated_as_the_tail(
    urls: str, client: httpx.Client, given: str
) -> None:
    here, *_ = places = urls.split(",")
    for kind, headers, content, empty in (
        ("text", TEXT, b"one", b""),
        ("json", JSON, b"10", b"[]"),
    ):
        path = f"/v1/stream/{kind}-{given}"
        assert client.put(here + path, headers=headers, content=content).status_code == 201
        for url in places:
            read = url + path + f"?offset={given}"
            open_tail = Told(200, empty, TAIL, "true", None)
            assert told(client.get(read)) == open_tail
            assert told(client.get(read + "&consistency=local")) == open_tail
            waited = client.get(read + "&live=long-poll&timeout=0.01")
            assert told(waited) == Told(204, b"", TAIL, "true", None)
            assert "stream-cursor" in waited.headers
            assert client.head(read).status_code == 200
        assert client.post(here + path, headers=CLOSE).status_code == 204
        for url in places:
            read = url + path + f"?offset={given}"
            assert told(client.get(read)) == Told(200, empty, TAIL, "true", "true")
            ended = client.get(read + "&live=long-poll")
            assert told(ended) == Told(204, b"", TAIL, "true", "true")
            [(kind, control)] = events(client.get(read + "&live=sse").content)
            assert kind == "control"
            assert f'"streamNextOffset":"{TAIL}"' in control
            assert '"streamClosed":true' in control


def test_a_read_between_two_boundaries_begins_with_the_record_there(
    urls: str, client: httpx.Client
) -> None:
    here, *_ = places = urls.split(",")
    made = client.put(here + "/v1/stream/inside", headers=TEXT, content=b"one")
    assert made.status_code == 201
    for content in (b"three", b"!", b"and more"):
        client.post(here + "/v1/stream/inside", headers=TEXT, content=content)
    for url in places:
        for given, content in (
            (offset(0, 1), b"onethree!and more"),
            (offset(0, 3), b"onethree!and more"),
            (offset(1, 4), b"three!and more"),
            (offset(2, 9), b"!and more"),
            (offset(3, 16), b"and more"),
        ):
            read = url + "/v1/stream/inside?offset=" + given
            assert client.get(read).content == content
            assert client.get(read + "&live=long-poll").content == content
        for given in (offset(0, 4), offset(1, 2), offset(1, 9), offset(3, 18), offset(4, 16)):
            for live in ("", "&live=long-poll", "&live=sse"):
                refused = client.get(f"{url}/v1/stream/inside?offset={given}{live}")
                assert refused.status_code == 400, (given, live)
                assert refused.json()["error"]["code"] == "INVALID_OFFSET"


def test_a_fork_ends_its_records_where_it_was_cut(urls: str, client: httpx.Client) -> None:
    here, *_ = urls.split(",")
    client.put(here + "/v1/stream/source", headers=TEXT, content=b"one")
    client.post(here + "/v1/stream/source", headers=TEXT, content=b"three")
    fork = {
        "Stream-Forked-From": "/v1/stream/source",
        "Stream-Fork-Offset": offset(1, 3),
        "Stream-Fork-Sub-Offset": "2",
    }
    assert client.put(here + "/v1/stream/fork", headers=fork).status_code == 201
    client.post(here + "/v1/stream/fork", headers=TEXT, content=b"!!")
    for given, status, content in (
        (offset(1, 4), 200, b"th!!"),
        (offset(1, 5), 200, b"th!!"),
        (offset(1, 6), 400, None),
        (offset(2, 6), 200, b"!!"),
    ):
        answer = client.get(f"{here}/v1/stream/fork?offset={given}")
        assert answer.status_code == status, given
        assert content is None or answer.content == content


@pytest.mark.parametrize("given", PAST_THE_TAIL)
async def test_a_long_poll_past_the_tail_returns_the_next_append_whole(
    given: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.connect() as reader, server.client() as client:
        await client.put(STREAM, headers=TEXT, content=b"one")
        await ask(reader, f"{STREAM}?offset={given}&live=long-poll")
        await parked(server)
        appended = await client.post(STREAM, headers=TEXT, content=b"three")
        answer = await reader.read_response()
        assert (answer.status, answer.body) == (200, b"three")
        assert answer.headers["stream-next-offset"] == appended.headers["stream-next-offset"]


@pytest.mark.parametrize("given", PAST_THE_TAIL)
async def test_sse_past_the_tail_names_the_tail_and_continues_from_there(
    given: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.connect() as reader, server.client() as client:
        await client.put(STREAM, headers=TEXT, content=b"one")
        await ask(reader, f"{STREAM}?offset={given}&live=sse")
        assert (await reader.read_head()).status == 200
        [(kind, control)] = events(await reader.read_through(b"upToDate"))
        assert (kind, f'"streamNextOffset":"{TAIL}"' in control) == ("control", True)
        await parked(server)
        await client.post(STREAM, headers=TEXT, content=b"three")
        assert events(await reader.read_through(b"upToDate"))[0] == ("data", "three")


async def test_sse_from_inside_a_record_begins_with_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as reader, server.client() as client:
        await client.put(STREAM, headers=TEXT, content=b"one")
        await client.post(STREAM, headers=TEXT, content=b"three")
        await ask(reader, f"{STREAM}?offset={offset(1, 4)}&live=sse")
        assert (await reader.read_head()).status == 200
        assert events(await reader.read_through(b"upToDate"))[0] == ("data", "three")


@pytest.mark.long
def test_a_local_read_at_a_partitioned_node_does_not_go_back_to_an_older_tail(
    tmp_path: Path,
) -> None:
    with ClusterProcesses(tmp_path) as cluster, httpx.Client(timeout=20.0) as client:
        leader = cluster.leader()
        lagging = cluster.followers(leader)[0]
        client.put(leader.url + STREAM, headers=TEXT, content=b"one")
        cluster.wait_converged()
        cluster.links.isolate(lagging.node_id, cluster.nodes)
        given = client.post(leader.url + STREAM, headers=TEXT, content=b"three")
        here = f"?consistency=local&offset={given.headers['stream-next-offset']}"
        assert client.get(lagging.url + STREAM + "?consistency=local").content == b"one"
        assert client.get(lagging.url + STREAM + here).status_code == 503
        cluster.links.heal()
        cluster.wait_ready()
        caught_up = client.get(lagging.url + STREAM + here)
        assert told(caught_up)[:3] == (200, b"", given.headers["stream-next-offset"])
