"""A node with a cold store proves each record that it serves, to anyone with the cluster's key."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from streamd.proofs.published import read_published
from streamd_audit.proof import Proved, verify_record
from tests.jepsen_like.cluster_processes import wait_until
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
DEADLINE_S = 60.0
LIMIT_BYTES = 4096


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("proofs")
    with ServerProcess(directory / "data", environment=cold(directory)) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with checked_client(base_url=server.url) as client:
        yield client


def cold(directory: Path) -> dict[str, str]:
    (directory / "cold").mkdir(mode=0o700, exist_ok=True)
    return {"STREAMD_COLD_BACKEND": "fs", "STREAMD_COLD_FS_PATH": str(directory / "cold")}


def key_of(client: httpx.Client) -> str:
    """The cluster's first key, as an operator would keep it."""

    def has_head() -> bool:
        return client.get("/cluster/log-head").is_success

    wait_until(has_head, "there is a head")
    return read_published(client.get("/cluster/log-head").content).keys[0].key


def proof_of(client: httpx.Client, path: str, offset: str = "-1") -> httpx.Response:
    """The answer about a record, once it is archived."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        answer = client.get(path, params={"offset": offset, "proof": "record"})
        if code_of(answer) not in ("NOT_ARCHIVED", "NO_LOG_HEAD", "PROOF_IN_PROGRESS"):
            return answer
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.05)


def code_of(answer: httpx.Response) -> str | None:
    return None if answer.is_success else answer.json()["error"]["code"]


def proved(client: httpx.Client, path: str, offset: str = "-1") -> Proved:
    answer = proof_of(client, path, offset)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"
    command = json.loads(answer.content)["command"]["bytes"]
    assert len(answer.content) <= LIMIT_BYTES + len(command)
    return verify_record(answer.content, key_of(client))


def append(client: httpx.Client, path: str, body: bytes, headers: dict[str, str] = TEXT) -> str:
    """Append; returns the offset after it."""
    answer = client.post(path, content=body, headers=headers)
    assert answer.is_success, answer.text
    return str(answer.headers["Stream-Next-Offset"])


def test_each_record_is_proved_by_its_offset(client: httpx.Client) -> None:
    client.put("/v1/stream/test/text", headers=TEXT, content=b"first")
    offsets = ["0" * 16 + "_" + "0" * 16]
    bodies = [b"first", *(b"record %d" % number for number in range(5))]
    for body in bodies[1:]:
        offsets.append(client.head("/v1/stream/test/text").headers["Stream-Next-Offset"])
        append(client, "/v1/stream/test/text", body)
    found = [proved(client, "/v1/stream/test/text", offset) for offset in offsets]
    assert [one.record for one in found] == bodies
    assert {(one.stream, one.content_type) for one in found} == {("test/text", "text/plain")}
    assert [one.claimed_offset for one in found] == offsets
    entries = [one.entry for one in found]
    assert entries == sorted(set(entries))
    assert found[-1].head.first_index == 1


def test_a_message_is_proved_without_its_neighbours(client: httpx.Client) -> None:
    client.put("/v1/stream/test/json", headers=JSON)
    append(client, "/v1/stream/test/json", b'[{"a": 1}, {"secret": 2}, {"c": 3.50}]', JSON)
    proved(client, "/v1/stream/test/json")
    for record, text in enumerate((b'{"a": 1}', b'{"secret": 2}', b'{"c": 3.50}')):
        query = {"record": str(record), "proof": "record"}
        answer = client.get("/v1/stream/test/json", params=query)
        assert verify_record(answer.content, key_of(client)).record == text


def test_the_right_one_of_equal_appends_is_proved(client: httpx.Client) -> None:
    """Some were refused, or sent twice by a producer: the log has them all."""
    path = "/v1/stream/test/equal"
    client.put(path, headers=TEXT)

    def produce(seq: int) -> None:
        producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(seq)}
        answer = client.post(path, content=b"same", headers={**TEXT, **producer})
        assert answer.is_success

    offsets = []
    for seq in (0, 0, 1, 1, 1, 2):
        before = client.head(path).headers["Stream-Next-Offset"]
        produce(seq)
        if client.head(path).headers["Stream-Next-Offset"] != before:
            offsets.append(before)
        wrong = client.post(path, content=b"same", headers={**TEXT, "If-Match": '"no"'})
        assert wrong.status_code == 412
    found = [proved(client, path, offset) for offset in offsets]
    assert len({one.entry for one in found}) == len(offsets) == 3


def test_a_proof_shows_no_record_that_its_stream_does_not_have(client: httpx.Client) -> None:
    source, fork = (f"/v1/stream/test/{name}" for name in ("private", "published"))
    assert client.put(source, headers=JSON).status_code == 201
    append(client, source, b'["open", "secret"]', JSON)
    middle = f"{1:016}_{7:016}"
    made = client.put(fork, headers={"Stream-Forked-From": source, "Stream-Fork-Offset": middle})
    assert made.status_code == 201, made.text
    assert client.get(fork).json() == ["open"]
    assert proof_of(client, source).status_code == 200
    answer = proof_of(client, fork)
    assert code_of(answer) == "NOT_PROVABLE", answer.text
    assert b"secret" not in answer.content


def test_what_a_fork_inherits_is_proved_in_its_source(client: httpx.Client) -> None:
    source, fork, second = (f"/v1/stream/test/{name}" for name in ("source", "fork", "second"))
    client.put(source, headers=TEXT)
    middle = append(client, source, b"inherited")
    append(client, source, b"not inherited")
    client.put(fork, headers={"Stream-Forked-From": source, "Stream-Fork-Offset": middle})
    end = append(client, fork, b"own")
    client.put(second, headers={"Stream-Forked-From": fork})
    append(client, second, b"of the second")
    client.delete(source)
    for path in (fork, second):
        inherited = proved(client, path)
        assert (inherited.stream, inherited.record) == ("test/source", b"inherited")
        own = proved(client, path, middle)
        assert (own.stream, own.record) == ("test/fork", b"own")
    last = proved(client, second, end)
    assert (last.stream, last.record) == ("test/second", b"of the second")


def test_a_stream_that_took_the_name_of_another_is_proved_by_its_own_log(
    client: httpx.Client,
) -> None:
    path = "/v1/stream/test/again"
    found = []
    for _ in range(3):
        client.put(path, headers=TEXT)
        append(client, path, b"the same")
        found.append(proved(client, path).entry)
        client.delete(path)
    assert found == sorted(set(found))


def test_proofs_survive_merged_segments_and_a_restart(tmp_path: Path) -> None:
    environment = cold(tmp_path)
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        with checked_client(base_url=server.url) as client:
            client.put("/v1/stream/test/old", headers=TEXT)
            append(client, "/v1/stream/test/old", b"before")
            first = proved(client, "/v1/stream/test/old")
            key = key_of(client)
        server.kill()
        server.start()
        server.wait_ready()
        with checked_client(base_url=server.url) as client:
            for number in range(20):
                append(client, "/v1/stream/test/old", b"%d" % number)
            again = proved(client, "/v1/stream/test/old")
            assert key_of(client) == key
    assert (again.entry, again.record) == (first.entry, first.record)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"offset": "now"}, 404, "NO_RECORD"),
        ({"offset": "0000000000000000_0000000000000007"}, 400, "INVALID_OFFSET"),
        ({"offset": "x"}, 400, "INVALID_OFFSET"),
        ({"proof": "all"}, 400, "INVALID_REQUEST"),
        ({"offset": "-1", "live": "sse"}, 400, "INVALID_REQUEST"),
        ({"framing": "lengths"}, 400, "INVALID_REQUEST"),
    ],
)
def test_what_cannot_be_proved_is_refused(
    client: httpx.Client, query: dict[str, str], status: int, code: str
) -> None:
    client.put("/v1/stream/test/refused", headers=TEXT, content=b"short")
    key_of(client)
    answer = client.get("/v1/stream/test/refused", params={"proof": "record", **query})
    assert (answer.status_code, code_of(answer)) == (status, code)


def test_a_stream_that_is_not_there_has_no_proof(client: httpx.Client) -> None:
    answer = client.get("/v1/stream/test/nothing", params={"proof": "record"})
    assert code_of(answer) == "STREAM_NOT_FOUND"


def test_a_record_that_is_not_archived_yet_is_asked_for_again(client: httpx.Client) -> None:
    key_of(client)
    client.put("/v1/stream/test/new", headers=TEXT, content=b"just now")
    answer = client.get("/v1/stream/test/new", params={"proof": "record"})
    if answer.is_error:
        assert (answer.status_code, code_of(answer)) == (503, "NOT_ARCHIVED")
        assert answer.headers["Retry-After"] == "1"
    assert proved(client, "/v1/stream/test/new").record == b"just now"


def test_a_quota_that_refused_an_append_is_named(client: httpx.Client) -> None:
    """The log has appends of which only the bucket's size told that they were refused."""
    client.put("/limited", headers=TEXT)
    client.put("/limited/s", headers=TEXT)
    answer = client.put("/cluster/limits/buckets/limited", json={"max_bytes": 5})
    assert answer.is_success, answer.text
    refused = client.post("/limited/s", content=b"too long", headers=TEXT)
    assert refused.status_code == 507
    append(client, "/limited/s", b"ok")
    answer = proof_of(client, "/limited/s")
    assert (answer.status_code, code_of(answer)) == (409, "NOT_PROVABLE")
    assert "quota" in answer.json()["error"]["message"]


def test_a_node_without_a_cold_store_has_no_proofs(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, checked_client(base_url=server.url) as client:
        client.put("/v1/stream/a", headers=TEXT, content=b"x")
        answer = client.get("/v1/stream/a", params={"proof": "record"})
        assert code_of(answer) == "NO_COLD_STORE"
