"""Input that is refused leaves nothing on any disk, on one node and on three, whichever is asked.

*Nothing* is this, for each request that is answered with an error, and for each repetition of one
that was accepted:

- The rows of the state are the same bytes, but for the header, which counts the log's entries, and
  the sessions of nodes, which number the packages that they send to the leader.
- The log grew by at most `ENTRY_BYTES` if the request had a large body, whatever its size: only the
  log can say what comes before what, so a small entry may be the price of a refusal. A body is
  never in it. A small write that only the machine can judge may be in the log once, body and all:
  at most `SMALL_WRITE_BYTES`, which goes back to the disk with the entries around it.
- What the log took goes back to the disk when it is compacted (`tests/storage/test_log_space.py`).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import httpx
import msgspec
import pytest

from streamd.node.foresight import SMALL_WRITE_BYTES
from streamd.storage.log_storage import open_log
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.model import Header
from tests.http.authorized import ROOT, Authorized, authorized
from tests.support.directories import copy_in_use

SEED = 24
# What a refusal may cost in the log of each node, whatever the size of its body.
ENTRY_BYTES = 256
MAX_BODY_BYTES = 1_000_000
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
START = "0000000000000000_0000000000000000"


class Kept(NamedTuple):
    """What a node has on its disk: rows of its state, the sizes of its log's entries by index."""

    rows: dict[bytes, bytes]
    entries: dict[int, int]


def _kept(directory: Path, copy: Path) -> Kept:
    """What a running node has on its disk, at some moment."""
    copy_in_use(directory, copy)
    log = open_log(copy / "log", copy / "floor")
    first, end = log.first_index, log.last_index + 1
    entries = log.entries(first, end, 1 << 40) if first < end else ()
    sizes = {entry.index: len(entry.payload) for entry in entries}
    log.close()
    state = StateStore(copy / "state")
    rows = dict(state.scan(b"\0", b"\xff" * 9, limit=1_000_000))
    state.close()
    return Kept(rows, sizes)


class Nodes:
    """The nodes under test, and their disks."""

    def __init__(self, place: Authorized, directory: Path) -> None:
        self.place = place
        self._directory = directory
        self._copies = 0

    def kept(self) -> list[Kept]:
        """What each node keeps once all have stored what was acknowledged."""
        applied = max(self._applied(url) for url in self.place.urls)
        found: list[Kept] = []
        for data_dir in sorted(self._directory.glob("node*/")) or [self._directory / "data"]:
            self.place.until(partial(self._has_stored, data_dir, applied, found))
        return found

    def _has_stored(self, data_dir: Path, applied: int, found: list[Kept]) -> bool:
        self._copies += 1
        kept = _kept(data_dir, self._directory / f"copy{self._copies}")
        raw = kept.rows.get(keys.HEADER)
        if raw is None or msgspec.msgpack.decode(raw, type=Header).applied_index < applied:
            return False
        if any(row[:1] in (keys.GARBAGE, keys.TRIM) for row in kept.rows):
            return False  # What these name is removed a little later.
        found.append(kept)
        return True

    def _applied(self, url: str) -> int:
        answer = self.place.ask("GET", "/cluster/status", url=url)
        applied: int = answer.json()["last_applied"]
        return applied


@pytest.fixture(
    scope="module",
    params=[
        "HTTP/1.1",
        "HTTP/2",
        pytest.param("workers", marks=pytest.mark.long),
        pytest.param("cluster", marks=pytest.mark.long),
    ],
)
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nodes]:
    directory = tmp_path_factory.mktemp("refused")
    settings = {"STREAMD_SERVER_MAX_BODY_BYTES": str(MAX_BODY_BYTES)}
    with authorized(request.param, directory, **settings) as place:
        _prepare(place)
        yield Nodes(place, directory)


def _producer(seq: int, epoch: int = 1) -> dict[str, str]:
    return {
        **TEXT,
        "Producer-Id": "p",
        "Producer-Epoch": str(epoch),
        "Producer-Seq": str(seq),
    }


def _prepare(place: Authorized) -> None:
    """Streams that refuse: a full bucket and its neighbours."""

    def done(method: str, path: str, **rest: object) -> httpx.Response:
        answer = place.ask(method, path, **rest)  # type: ignore[arg-type]
        assert answer.status_code < 300, (path, answer.text)
        return answer

    limits = "/cluster/limits/buckets"
    done("PUT", f"{limits}/full", json={"max_bytes": 2000, "max_streams": 2})
    done("PUT", f"{limits}/slow", json={"bytes_in_per_s": 1})
    for bucket in ("full", "open", "slow"):
        done("PUT", f"/{bucket}")
    done("PUT", "/full/text", headers=TEXT, content=b"x" * 1000)
    done("POST", "/full/text", headers=_producer(0), content=b"y" * 900)
    done("PUT", "/full/json", headers=JSON, content=b'["%b"]' % (b"z" * 80))
    done("PUT", "/open/text", headers=TEXT, content=b"hello")
    done("POST", "/open/text", headers={**_producer(0), "Stream-Seq": "5"}, content=b"one")
    done("PUT", "/open/json", headers=JSON, content=b"[1,2]")
    done("PUT", "/open/closed", headers={**TEXT, "Stream-Closed": "true"}, content=b"end")
    done("PUT", "/open/gone", headers=TEXT, content=b"gone")
    done("PUT", "/open/fork", headers={"Stream-Forked-From": "/v1/stream/open/gone"})
    done("DELETE", "/open/gone")
    done("PUT", "/open/cut", headers=TEXT, content=b"abc")
    tail = done("POST", "/open/cut", headers=TEXT, content=b"de").headers["stream-next-offset"]
    done("PUT", f"/open/cut/snapshot/{tail}", headers=TEXT, content=b"abcde")


class Refused(NamedTuple):
    """A request that is refused, and with what; or that repeats another, without a code."""

    method: str
    path: str
    status: int
    code: str = ""
    headers: dict[str, str] = TEXT
    body: str = "text"
    token: str = "root"


AT_3 = "0000000000000001_0000000000000003"
FROM_GONE = {**TEXT, "Stream-Forked-From": "/v1/stream/open/gone"}
FROM_CUT = {**TEXT, "Stream-Forked-From": "/v1/stream/open/cut"}
FROM_TEXT = {**TEXT, "Stream-Forked-From": "/v1/stream/open/text"}
FROM_NONE = {**TEXT, "Stream-Forked-From": "/v1/stream/open/none"}
OTHER_STATE = {**TEXT, "If-Match": '"99:0000000000000001_0000000000000003"'}
APPENDS = [
    Refused("POST", "/full/text", 507, "QUOTA_EXCEEDED"),
    Refused("POST", "/full/json", 507, "QUOTA_EXCEEDED", JSON, "json"),
    Refused("POST", "/full/text", 507, "QUOTA_EXCEEDED", _producer(1)),
    Refused("POST", "/full/text", 507, "QUOTA_EXCEEDED", {**TEXT, "Stream-Closed": "true"}),
    Refused("POST", "/full/text", 204, "", _producer(0)),
    Refused("POST", "/open/text", 204, "", _producer(0)),
    Refused("POST", "/open/text", 409, "SEQUENCE_GAP", _producer(7)),
    Refused("POST", "/open/text", 403, "STALE_EPOCH", _producer(0, epoch=0)),
    Refused("POST", "/open/text", 400, "INVALID_EPOCH_SEQ", _producer(3, epoch=2)),
    Refused("POST", "/open/text", 409, "SEQUENCE_CONFLICT", {**TEXT, "Stream-Seq": "4"}),
    Refused("POST", "/open/text", 409, "CONTENT_TYPE_MISMATCH", JSON, "json"),
    Refused("POST", "/open/text", 412, "PRECONDITION_FAILED", OTHER_STATE),
    Refused("POST", "/open/text", 400, "MISSING_CONTENT_TYPE", {}),
    Refused("POST", "/open/text", 400, "EMPTY_BODY", TEXT, "empty"),
    Refused("POST", "/open/text", 413, "BODY_TOO_LARGE", TEXT, "too large"),
    Refused("POST", "/open/text", 415, "", {**TEXT, "Content-Encoding": "gzip"}),
    Refused("POST", "/open/text", 400, "", {**TEXT, "Producer-Id": "p"}),
    Refused("POST", "/open/json", 400, "INVALID_JSON", JSON, "text"),
    Refused("POST", "/open/json", 409, "CONTENT_TYPE_MISMATCH"),
    Refused("POST", "/open/closed", 409, "STREAM_CLOSED"),
    Refused("POST", "/open/gone", 410, "STREAM_GONE"),
    Refused("POST", "/open/none", 404, "STREAM_NOT_FOUND"),
    Refused("POST", "/none/none", 404, "STREAM_NOT_FOUND"),
    Refused("POST", "/v1/stream/full/none", 404, "STREAM_NOT_FOUND"),
    Refused("POST", "/open/text", 401, "", token="none"),
    Refused("POST", "/open/text", 403, "", token="reader"),
]
BATCHES = [
    Refused("POST", "/full/text/append-batch", 507, "QUOTA_EXCEEDED", TEXT, "batch"),
    Refused("POST", "/open/text/append-batch", 400, "INVALID_FRAME", TEXT, "text"),
    Refused("POST", "/open/json/append-batch", 400, "INVALID_JSON", JSON, "batch"),
    Refused("POST", "/open/text/append-batch", 412, "PRECONDITION_FAILED", OTHER_STATE, "batch"),
    Refused("POST", "/open/none/append-batch", 404, "STREAM_NOT_FOUND", TEXT, "batch"),
    Refused("POST", "/open/closed/append-batch", 409, "STREAM_CLOSED", TEXT, "batch"),
]
CREATES = [
    Refused("PUT", "/full/more", 403, "TOO_MANY_STREAMS"),
    Refused("PUT", "/v1/stream/full/more", 403, "TOO_MANY_STREAMS", JSON, "json"),
    Refused("PUT", "/open/text", 409, "STREAM_EXISTS", JSON, "json"),
    Refused("PUT", "/open/text", 200),
    Refused("PUT", "/open/gone", 409, "STREAM_GONE"),
    Refused("PUT", "/none/none", 404, "BUCKET_NOT_FOUND"),
    Refused("PUT", "/open/none", 412, "PRECONDITION_FAILED", OTHER_STATE),
    Refused("PUT", "/open/none", 400, "INVALID_JSON", JSON, "text"),
    Refused("PUT", "/open/none", 400, "", {**TEXT, "Stream-TTL": "-1"}),
    Refused("PUT", "/open/streams", 400, "INVALID_STREAM_ID"),
    Refused("PUT", "/open/none", 403, "", token="reader"),
]
FORKS = [
    Refused("PUT", "/open/new", 404, "STREAM_NOT_FOUND", FROM_NONE),
    Refused("PUT", "/open/new", 409, "STREAM_GONE", FROM_GONE),
    Refused("PUT", "/open/new", 410, "", {**FROM_CUT, "Stream-Fork-Offset": START}),
    Refused("PUT", "/open/new", 400, "INVALID_OFFSET", {**FROM_TEXT, "Stream-Fork-Offset": AT_3}),
    Refused("PUT", "/full/new", 403, "TOO_MANY_STREAMS", FROM_TEXT),
    Refused("PUT", "/open/new", 409, "CONTENT_TYPE_MISMATCH", {**FROM_TEXT, **JSON}, "json"),
]
SNAPSHOTS = [
    Refused("PUT", f"/full/text/snapshot/{START}", 507, "QUOTA_EXCEEDED"),
    Refused("PUT", f"/full/text/snapshot/{START}", 507, "QUOTA_EXCEEDED", TEXT, "parts"),
    Refused("PUT", f"/open/text/snapshot/{AT_3}", 400, "INVALID_OFFSET"),
    Refused("PUT", f"/open/cut/snapshot/{START}", 410, ""),
    Refused("PUT", f"/open/cut/snapshot/{START[:15]}9{START[16:]}", 409, "OFFSET_BEYOND_TAIL"),
    Refused("PUT", "/open/cut/snapshot/0000000000000002_0000000000000005", 409, "SNAPSHOT_EXISTS"),
    Refused("PUT", f"/open/none/snapshot/{START}", 404, "STREAM_NOT_FOUND"),
    Refused("PUT", "/open/cut/snapshot/x", 400, ""),
    Refused("DELETE", "/open/cut/snapshot/0000000000000002_0000000000000005", 409, "", {}, "empty"),
]
ADMINISTRATION = [
    Refused("PUT", "/ab", 400, "INVALID_BUCKET_ID", {}, "empty"),
    Refused("PUT", "/open", 409, "", {}, "empty"),
    Refused("DELETE", "/open", 409, "BUCKET_NOT_EMPTY", {}, "empty"),
    Refused("DELETE", "/none", 404, "BUCKET_NOT_FOUND", {}, "empty"),
    Refused("DELETE", "/open/none", 404, "STREAM_NOT_FOUND", {}, "empty"),
    Refused("DELETE", "/open/text", 412, "PRECONDITION_FAILED", OTHER_STATE, "empty"),
    Refused("PUT", "/cluster/limits/buckets/open", 400, "", JSON, "text"),
    Refused("PUT", "/cluster/limits/buckets/open", 403, "", JSON, "json", "reader"),
    Refused("DELETE", "/cluster/limits/buckets/none", 404, "", {}, "empty"),
    Refused("POST", "/auth/tokens", 400, "", JSON, "json"),
    Refused("POST", "/auth/tokens", 401, "", JSON, "json", "none"),
    Refused("DELETE", "/auth/tokens/none", 404, "", {}, "empty"),
]
ALL = [*APPENDS, *BATCHES, *CREATES, *FORKS, *SNAPSHOTS, *ADMINISTRATION]


def _body(kind: str, size: int) -> bytes | Iterator[bytes]:
    match kind:
        case "text":
            return b"t" * size
        case "json":
            return b'["%b"]' % (b"j" * size)
        case "batch":
            return b"".join(struct.pack(">I", size) + b"b" * size for _ in range(2))
        case "parts":
            return iter([b"p" * 60_000] * 5)
        case "too large":
            return b"t" * (MAX_BODY_BYTES + 1)
        case _:
            return b""


def _ask(
    nodes: Nodes, refused: Refused, size: int, tokens: dict[str, str | None], url: str
) -> httpx.Response:
    return nodes.place.ask(
        refused.method,
        refused.path,
        tokens[refused.token],
        headers=refused.headers,
        url=url,
        content=_body(refused.body, size),
    )


def _status_and_code(answer: httpx.Response, refused: Refused) -> tuple[int, str]:
    """Status and code of an answer; without a code where the table has none."""
    has_code = refused.code and answer.content
    return answer.status_code, answer.json()["error"]["code"] if has_code else ""


def test_no_refused_request_leaves_anything_on_a_disk(nodes: Nodes) -> None:
    random = Random(SEED)
    reader = nodes.place.token("read:open/*")
    tokens: dict[str, str | None] = {"root": ROOT, "reader": reader, "none": None}
    before = nodes.kept()
    allowed = 0
    for are_large in (True, False):
        for refused in random.sample(ALL, len(ALL)):
            size = random.randrange(70_000, 300_000) if are_large else random.randrange(20, 200)
            url = random.choice(nodes.place.urls)
            answer = _ask(nodes, refused, size, tokens, url)
            found = _status_and_code(answer, refused)
            assert found == (refused.status, refused.code), (refused, answer.text)
            allowed += ENTRY_BYTES + (0 if are_large else 2 * size)
    for was, now in zip(before, nodes.kept(), strict=True):
        assert _rows(now) == _rows(was)
        last = max(was.entries)
        added = [size for index, size in now.entries.items() if index > last]
        assert max(added) <= SMALL_WRITE_BYTES, "a large body is in the log"
        assert sum(added) <= allowed


def test_a_request_beyond_a_rate_leaves_nothing_on_a_disk(nodes: Nodes) -> None:
    writer = nodes.place.token("append:slow/*")
    before = nodes.kept()
    for url in nodes.place.urls:
        # The first one goes into debt for days.
        answers = [
            nodes.place.ask(
                "POST", "/slow/none", writer, url=url, headers=TEXT, content=bytes(200_000)
            )
            for _ in range(3)
        ]
        assert {answer.status_code for answer in answers} == {404, 429}
    for was, now in zip(before, nodes.kept(), strict=True):
        assert _rows(now) == _rows(was)
        added = [size for index, size in now.entries.items() if index > max(was.entries)]
        assert sum(added) <= 3 * len(nodes.place.urls) * ENTRY_BYTES


def test_a_body_that_no_quota_has_room_for_is_not_received(tmp_path: Path) -> None:
    with authorized("HTTP/1.1", tmp_path) as place:
        _prepare(place)
        headers = {**TEXT, "Content-Length": "10000000"}
        for method, path in (
            ("POST", "/full/text"),
            ("POST", "/full/text/append-batch"),
            ("PUT", "/full/more"),
            ("PUT", f"/full/text/snapshot/{START}"),
        ):
            port = httpx.URL(place.urls[0]).port
            with socket.create_connection(("127.0.0.1", port or 0), timeout=20) as raw:
                lines = [f"{method} {path} HTTP/1.1", f"Authorization: Bearer {ROOT}"]
                lines += [f"{name}: {value}" for name, value in headers.items()]
                lines += [f"Host: 127.0.0.1:{port}", "", ""]
                raw.sendall("\r\n".join(lines).encode())
                # Not a byte of the body is sent before the answer is there.
                status = int(raw.recv(4096).split()[1])
                assert status == (403 if path == "/full/more" else 507)


def _rows(kept: Kept) -> dict[bytes, bytes]:
    return {
        row: raw
        for row, raw in kept.rows.items()
        if row != keys.HEADER and not row.startswith(keys.SESSION)
    }
