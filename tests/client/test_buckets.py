"""`streamd list`, `snapshot` and `bootstrap`: commands on buckets and their streams."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from tests.client.running import Shell, heard
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client


@pytest.fixture(scope="module")
def many(streamd: Shell) -> list[str]:
    """A bucket of more streams than a page of the listing holds, with one more beside it."""
    names = sorted(f"many/{number}" for number in range(2345))
    with checked_client(base_url=streamd.environment["STREAMD_URL"]) as client:
        for name in [*names, "many-others/1"]:
            client.put(f"/v1/stream/{name}").raise_for_status()
    return names


# --- buckets


@pytest.mark.long
def test_a_listing_requests_every_page(streamd: Shell, many: list[str]) -> None:
    assert streamd("list", "many").decode().splitlines() == many
    chosen = streamd("list", "many", "--prefix", "23").decode().splitlines()
    assert chosen == [name for name in many if name.startswith("many/23")]
    assert streamd("list", "many", "--prefix", "none") == b""


def test_a_listing_may_show_metadata(streamd: Shell) -> None:
    streamd("create", "told/one", "-t", "json")
    streamd("append", "told/one", "--close", given=b"[1,2]")
    [line] = streamd("list", "told/", "--json").splitlines()
    told = json.loads(line)
    assert (told["stream_id"], told["status"], told["tail_offset"]) == ("one", "closed", 4)
    [line] = streamd("list", "-l", "told").splitlines()
    assert line.split()[:2] == [b"closed", b"4"]
    assert line.endswith(b"application/json          told/one")


def test_buckets_are_listed_and_so_are_streams_without_one(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        streamd = Shell(server.url)
        assert streamd("list") == b""
        for name in ("chat", "demo/one", "demo/two", "ab/x"):
            streamd("create", name)
        assert streamd("list").split() == [b"_default", b"ab", b"demo"]
        assert streamd("list", "--prefix", "d") == b"demo\n"
        told = [json.loads(line) for line in streamd("list", "--json").splitlines()]
        assert [(one["bucket_id"], one["streams"]) for one in told][-1] == ("demo", 2)
        assert streamd("list", "-l").splitlines()[-1].split()[0::3] == [b"2", b"demo"]
        for bucket in ("_default", "ab"):
            for name in streamd("list", bucket).decode().splitlines():
                streamd("head", name)
        assert streamd("list", "_default") == b"chat\n"


@pytest.mark.long
def test_a_listing_of_buckets_requests_every_page(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        names = sorted(f"bucket-{number}" for number in range(1234))
        with checked_client(base_url=server.url) as client:
            for name in names:
                client.put(f"/{name}").raise_for_status()
        assert Shell(server.url)("list").decode().splitlines() == names


def test_a_bucket_is_created_and_deleted_when_it_is_empty(streamd: Shell) -> None:
    assert streamd("create", "--bucket", "brief") == b"created bucket brief\n"
    assert streamd("list", "brief") == b""
    streamd("create", "/brief/one")
    assert "409" in streamd.fails(1, "delete", "--bucket", "brief")
    streamd("delete", "/brief/one")
    assert streamd("delete", "--bucket", "brief") == b"deleted bucket brief\n"
    assert streamd.fails(1, "list", "brief").endswith("(404 BUCKET_NOT_FOUND)")


# --- snapshots


def test_a_snapshot_is_published_and_read_back(streamd: Shell, tmp_path: Path) -> None:
    streamd("create", "demo/doc", "-t", "json")
    at = json.loads(streamd("append", "demo/doc", "--json", given=b"[1,2]"))["next_offset"]
    streamd("append", "demo/doc", given=b"[3]")
    said = streamd("snapshot", "publish", "demo/doc", "--at", at, "-t", "json", given=b"[1, 2]")
    assert said.decode() == f"published a snapshot of demo/doc at {at}\n"
    assert streamd("snapshot", "read", "demo/doc") == b"[1, 2]"
    assert streamd("snapshot", "read", "/demo/doc", "--at", at) == b"[1, 2]"
    assert streamd("snapshot", "read", "demo/doc", "-o", str(tmp_path / "doc")) == b""
    assert (tmp_path / "doc").read_bytes() == b"[1, 2]"
    assert [path.name for path in tmp_path.iterdir()] == ["doc"]
    assert json.loads(streamd("head", "demo/doc", "--json"))["snapshot_offset"] == at
    assert streamd("tail", "demo/doc") == b"3\n", "the last lines of what is left"
    sentence = streamd.fails(1, "read", "demo/doc")
    assert at in sentence
    assert "'streamd bootstrap demo/doc'" in sentence


def test_a_refused_snapshot_leaves_no_file(streamd: Shell, tmp_path: Path) -> None:
    streamd("create", "demo/none")
    assert "404" in streamd.fails(1, "snapshot", "read", "demo/none", "-o", str(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_large_snapshot_passes_through_little_memory(streamd: Shell, tmp_path: Path) -> None:
    file = tmp_path / "state"
    with file.open("wb") as target:
        for number in range(100):
            target.write(number.to_bytes(4, "big") * (1 << 18))
    streamd("create", "demo/large", "-t", "bytes")
    streamd("append", "demo/large", given=b"x")
    back, nothing = tmp_path / "back", Path(os.devnull)
    publish = ("snapshot", "publish", "demo/large", "--at", "now")
    assert streamd.peak_memory_kb(*publish, given=file, into=nothing) < 80_000
    read = ("snapshot", "read", "demo/large")
    assert streamd.peak_memory_kb(*read, given=nothing, into=back) < 80_000
    assert sha256(back.read_bytes()).digest() == sha256(file.read_bytes()).digest()


# --- bootstrap


def test_a_bootstrap_is_the_snapshot_and_every_message_after_it(
    streamd: Shell, tmp_path: Path
) -> None:
    streamd("create", "demo/state", "-t", "json")
    streamd("append", "demo/state", given=b"[1,2]")
    streamd("snapshot", "publish", "demo/state", "--at", "now", "-t", "text", given=b"1+2\n")
    given = b'{"n":\n 3}'
    end = json.loads(streamd("append", "demo/state", "--json", given=given))["next_offset"]
    streamd("append", "demo/state", given=b"4")
    end = json.loads(streamd("head", "demo/state", "--json"))["next_offset"]

    assert streamd("bootstrap", "demo/state") == b'1+2\n{"n":  3}\n4\n'

    first, *messages = map(json.loads, streamd("bootstrap", "demo/state", "--json").splitlines())
    assert first["next_offset"] == end
    assert messages == [
        {"content_type": "text/plain", "text": "1+2\n"},
        {"content_type": "application/json", "message": {"n": 3}},
        {"content_type": "application/json", "message": 4},
    ]

    directory = tmp_path / "state"
    assert streamd("bootstrap", "demo/state", "--dir", str(directory)) == b""
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert json.loads(files.pop("offsets.json")) == {
        "snapshot_offset": first["snapshot_offset"],
        "next_offset": end,
        "snapshot_content_type": "text/plain",
    }
    assert files == {"snapshot": b"1+2\n", "00000001": b'{"n":\n 3}', "00000002": b"4"}
    streamd.fails(2, "bootstrap", "demo/state", "--dir", str(directory))


def test_a_bootstrap_without_a_snapshot_is_the_stream(streamd: Shell) -> None:
    content = bytes(range(256)) + b"\r\n--\r\n"
    streamd("create", "demo/bare", "-t", "bytes")
    streamd("append", "demo/bare", given=content)
    assert streamd("bootstrap", "demo/bare") == content
    first, *messages = map(json.loads, streamd("bootstrap", "demo/bare", "--json").splitlines())
    assert first["snapshot_offset"] == "-1"
    assert [message["content_type"] for message in messages] == ["application/octet-stream"]


def test_a_bootstrap_continues_as_a_tail(streamd: Shell) -> None:
    streamd("create", "demo/live", "-t", "json")
    streamd("append", "demo/live", given=b"[1,2]")
    streamd("snapshot", "publish", "demo/live", "--at", "now", "-t", "json", given=b"[1,2]")
    with streamd.started("bootstrap", "-f", "demo/live") as process:
        assert heard(process, 6) == b"[1,2]\n"
        streamd("append", "demo/live", "--close", given=b"3")
        assert heard(process, 2) == b"3\n"
        assert process.wait(60) == 0
