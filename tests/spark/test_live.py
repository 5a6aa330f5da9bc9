"""A running cluster is compared with the log: losses and changes are found, later commands are
not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import urllib3

from streamd.auth.tokens import mint
from streamd.config.settings import AuthConfig
from streamd_audit.errors import StoreFailed
from streamd_audit.findings import Finding
from streamd_audit.live import APPEND, STREAM, Cluster, compare
from streamd_audit.options import NotRun, parse, parser
from streamd_audit.replay.run import DETAIL_ENCODER, StreamDetail
from tests.http.serving import Serving, serving

pytestmark = pytest.mark.long

TEXT = {"Content-Type": "text/plain"}
PATH = "/v1/stream/agents/a b/c"
RECORDS = [b"one", b"two", b"three", b"four"]


def told(
    contents: list[list[bytes]],
    *,
    stream_id: int = 1,
    name: str = "a b/c",
    closed: bool = False,
    content_type: str = "text/plain",
    ttl_ms: int | None = None,
) -> list[dict[str, Any]]:
    """A stream as the log has it: each append's records."""
    every = [record for append in contents for record in append]
    detail = StreamDetail(
        content_type, 0, 0, 0, ttl_ms, None, closed, None, False, 0, (), (0, 0), b"", 0, {}
    )
    about = {"group": 0, "stream_id": stream_id, "bucket": "agents", "stream": name}
    rows = [
        about
        | {
            "what": STREAM, "start_record": 0, "records": len(every), "bytes": len(b"".join(every)),
            "hash": b"", "detail": DETAIL_ENCODER.encode(detail),
        }
    ]  # fmt: skip
    starts = accumulate(map(len, contents), initial=0)
    for start, append in zip(starts, contents, strict=False):
        digests = b"".join(sha256(record).digest()[:16] for record in append)
        rows.append(about | {"what": APPEND, "start_record": start, "hash": digests})
    return rows


class Live:
    """A node with a stream of `RECORDS`."""

    def __init__(self, server: Serving, http: httpx.AsyncClient) -> None:
        self.http = http
        self._url = server.url

    async def judge(self, rows: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
        """Kinds and offsets of what is found."""

        def ask() -> list[Finding]:
            with urllib3.PoolManager() as pool:
                return list(compare(Cluster(pool, self._url), "cluster", rows))

        return [(one.kind, one.offset) for one in await trio.to_thread.run_sync(ask)]


@asynccontextmanager
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with serving(tmp_path) as server, httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.put(PATH, headers=TEXT)).status_code == 201
        for record in RECORDS:
            await http.post(PATH, headers=TEXT, content=record)
        yield Live(server, http)


def each(change: Callable[[list[bytes]], None] | None = None) -> list[list[bytes]]:
    records = list(RECORDS)
    if change is not None:
        change(records)
    return [[record] for record in records]


async def test_a_cluster_that_answers_as_the_log_says_is_clean(tmp_path: Path) -> None:
    async with live(tmp_path) as cluster:
        assert await cluster.judge(told(each())) == []
        assert await cluster.judge(told([RECORDS[:1], RECORDS[1:]])) == []


async def test_the_first_record_that_differs_is_named(tmp_path: Path) -> None:
    async with live(tmp_path) as cluster:
        other = told(each(lambda records: records.__setitem__(2, b"thr3e")))
        assert await cluster.judge(other) == [("live_differs", "2")]


async def test_a_stream_that_the_cluster_lacks_is_lost(tmp_path: Path) -> None:
    async with live(tmp_path) as cluster:
        rows = [*told(each(), stream_id=2, name="gone"), *told(each())]
        assert await cluster.judge(rows) == [("live_lost", None)]


async def test_a_tail_before_the_archived_one_is_found(tmp_path: Path) -> None:
    async with live(tmp_path) as cluster:
        found = await cluster.judge(told([*each(), [b"five"]]))
        assert [kind for kind, _ in found] == ["live_tail_differs"]


async def test_an_open_stream_that_the_log_closed_is_found(tmp_path: Path) -> None:
    async with live(tmp_path) as cluster:
        found = await cluster.judge(told(each(), closed=True))
        assert [kind for kind, _ in found] == ["live_state_differs"]
        await cluster.http.post(PATH, headers={"Stream-Closed": "true"})
        assert await cluster.judge(told(each(), closed=True)) == []


async def test_a_different_content_type_is_found(tmp_path: Path) -> None:
    async with live(tmp_path) as cluster:
        found = await cluster.judge(told(each(), content_type="application/json"))
        assert [kind for kind, _ in found] == ["live_state_differs"]


async def test_changes_after_the_archives_end_are_not_faults(tmp_path: Path) -> None:
    """It appended, closed and trimmed, and a stream expired."""
    async with live(tmp_path) as cluster:
        answer = await cluster.http.post(PATH, headers=TEXT, content=b"later")
        tail = answer.headers["Stream-Next-Offset"]
        await cluster.http.post(PATH, headers={"Stream-Closed": "true"})
        assert await cluster.judge(told(each())) == []
        published = await cluster.http.put(
            f"/agents/other/snapshot/{tail}", headers=TEXT, content=b"all"
        )
        assert published.status_code == 404  # a name with a slash has none; another stream does
        assert await cluster.judge(told(each(), stream_id=2, name="over", ttl_ms=1)) == []


async def test_records_trimmed_since_are_skipped(tmp_path: Path) -> None:
    async with live(tmp_path) as cluster:
        path = "/agents/plain"
        await cluster.http.put(path, headers=TEXT)
        offsets = []
        for record in RECORDS:
            answer = await cluster.http.post(path, headers=TEXT, content=record)
            offsets.append(answer.headers["Stream-Next-Offset"])
        put = await cluster.http.put(
            f"{path}/snapshot/{offsets[1]}", headers=TEXT, content=b"one and two"
        )
        assert put.status_code == 204
        assert await cluster.judge(told(each(), stream_id=2, name="plain")) == []
        changed = each(lambda records: records.__setitem__(3, b"f0ur"))
        assert await cluster.judge(told(changed, stream_id=2, name="plain")) == [
            ("live_differs", "3")
        ]


async def test_a_cluster_that_requires_tokens_is_asked_with_one(tmp_path: Path) -> None:
    root = mint(1, b"root" * 5)
    auth = AuthConfig(mode="required", root_token=root)
    async with serving(tmp_path, auth=auth) as server:

        def kinds(token: str | None) -> list[str]:
            with urllib3.PoolManager() as pool:
                live = Cluster(pool, server.url, token)
                return [one.kind for one in compare(live, "cluster", told([RECORDS]))]

        assert await trio.to_thread.run_sync(kinds, root) == ["live_lost"]
        with pytest.raises(StoreFailed, match="answers 401"):
            await trio.to_thread.run_sync(kinds, None)


def test_the_token_is_taken_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = parser("audit"), ["--store", "x", "--url", "http://x"]
    monkeypatch.setenv("STREAMD_TOKEN", "sd_one")
    given = parse(*arguments)
    assert given.token == "sd_one"
    assert "sd_one" not in repr(given)
    assert parse(parser("audit"), ["--store", "x"]).token is None, "only a cluster gets it"
    (tmp_path / "token").write_text("sd_two\n")
    monkeypatch.setenv("STREAMD_TOKEN_FILE", str(tmp_path / "token"))
    assert parse(*arguments).token == "sd_two"
    monkeypatch.setenv("STREAMD_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(NotRun, match="STREAMD_TOKEN_FILE"):
        parse(*arguments)
