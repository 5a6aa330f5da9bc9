"""A live cluster compared with the result of the archived log (docs/api.md).

A cluster keeps working while it is audited: it may have more records, and may have closed, trimmed,
deleted or recreated a stream. Only what no later command can explain is a finding.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from hashlib import sha256
from struct import Struct, unpack_from
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import urllib3
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from streamd_audit.arrow import map_in_arrow
from streamd_audit.context import Context
from streamd_audit.errors import StoreFailed
from streamd_audit.findings import FINDINGS_DDL, Finding, finding, findings_batch, stream_name
from streamd_audit.replay.distribute import Replayed
from streamd_audit.replay.model import media_type
from streamd_audit.replay.run import decode_detail

_DIGEST_BYTES = 16
_TIMEOUT_S = 30.0
# The size of one answer; a record is in it whole, whatever its size.
_READ_BYTES = 1024 * 1024
_COUNT = Struct(">I")
_OFFSET = re.compile(r"(\d{16})_(\d{16})")
_TAG = re.compile(r'"(\d+):')
STREAM, APPEND = range(2)
_ROWS = (
    "group", "stream_id", "what", "bucket", "stream", "start_record", "records", "bytes", "hash",
    "detail",
)  # fmt: skip

Row = dict[str, Any]


def live_findings(context: Context, replayed: Replayed) -> DataFrame:
    """What a cluster at ``--url`` answers differently from the log, stream by stream."""
    url = (context.options.url or "").rstrip("/")
    token = context.options.token
    cluster = context.cluster
    streams = replayed.streams.select(
        "group", "stream_id", f.lit(STREAM).alias("what"), "bucket", "stream",
        f.col("from_record").alias("start_record"), "records", "bytes", "hash", "detail",
    )  # fmt: skip
    appends = replayed.appends.select(
        "group", "stream_id", f.lit(APPEND).alias("what"), "bucket", "stream", "start_record",
        f.col("records").cast("long").alias("records"), "bytes", f.col("digests").alias("hash"),
        f.lit(None).cast("binary").alias("detail"),
    )  # fmt: skip
    ordered = (
        streams.unionByName(appends)
        .repartition("group", "stream_id")
        .sortWithinPartitions("group", "stream_id", "what", "start_record")
    )

    def compared(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pool = urllib3.PoolManager(timeout=_TIMEOUT_S, retries=3)
        yield findings_batch(compare(Cluster(pool, url, token), cluster, _rows(batches)))

    return map_in_arrow(ordered, compared, FINDINGS_DDL)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _ROWS]
        for values in zip(*columns, strict=True):
            yield dict(zip(_ROWS, values, strict=True))


def compare(live: Cluster, cluster: str, rows: Iterable[Row]) -> Iterator[Finding]:
    reader: _Reader | None = None
    for row in rows:
        if row["what"] == STREAM:
            reader = None
            told = _of_stream(live, row)
            if isinstance(told, _Reader):
                reader = told
            elif told is not None:
                yield _finding(cluster, row, *told)
        elif reader is not None and row["stream_id"] == reader.stream_id:
            differs = reader.compare(row["start_record"], row["hash"] or b"")
            if differs is not None:
                yield _finding(cluster, row, *differs)
                reader = None


# Kind, offset, expected, found.
_Told = tuple[str, str | None, str, str]


def _finding(
    cluster: str, row: Row, kind: str, offset: str | None, expected: str, found: str
) -> Finding:
    return finding(
        kind,
        cluster=cluster,
        group=row["group"],
        stream=stream_name(row["bucket"], row["stream"]),
        stream_id=row["stream_id"],
        offset=offset,
        expected=expected,
        found=found,
    )


class Cluster:
    """The live cluster, asked about one stream after the other, with a `token` if it needs one."""

    def __init__(self, pool: urllib3.PoolManager, url: str, token: str | None = None) -> None:
        self._pool = pool
        self._url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(self, method: str, bucket: str, stream: str, **query: Any) -> Any:
        """An answer. Raises `StoreFailed` when there is none."""
        path = f"{self._url}/v1/stream/{quote(bucket, safe='')}/{quote(stream, safe='/')}"
        try:
            answer = self._pool.request(
                method, path, fields=query or None, headers=self._headers, redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise StoreFailed(f"{self._url}: {error}") from error
        if answer.status >= 500 or answer.status in (401, 403, 421, 429):
            raise StoreFailed(f"{self._url} answers {answer.status} for {bucket}/{stream}")
        return answer


def _of_stream(live: Cluster, row: Row) -> _Reader | _Told | None:
    """The findings of a stream's HEAD, and a reader for it if all is well so far."""
    detail = decode_detail(row["detail"])
    if detail.deleted or _is_over(detail):
        return None
    head = live.ask("HEAD", row["bucket"], row["stream"])
    if head.status in (404, 410):
        return "live_lost", None, f"{row['records']} records", f"status {head.status}"
    if head.status != 200:
        return "live_state_differs", None, "status 200", f"status {head.status}"
    tag, tail = _TAG.match(head.headers.get("ETag", "")), _tail(head)
    if tag is not None and int(tag[1]) % 2**62 > row["stream_id"] and tail[0] < row["records"]:
        return None  # recreated since: a later stream with this name
    there = row["records"], row["bytes"]
    if tail < there:
        return "live_tail_differs", _token(tail), _token(there), _token(tail)
    is_closed = head.headers.get("Stream-Closed", "").lower() == "true"
    if detail.closed and not is_closed:
        return "live_state_differs", _token(there), "closed", "open"
    kind = head.headers.get("Content-Type", "")
    if media_type(kind) != media_type(detail.content_type):
        return "live_state_differs", None, detail.content_type, kind
    return _Reader(live, row)


def _is_over(detail: Any) -> bool:
    """Whether a stream has expired by this machine's clock, with a minute's tolerance."""
    at_ms = detail.expires_at_ms
    if detail.ttl_ms is not None:
        at_ms = detail.touched_ms + detail.ttl_ms
    return at_ms is not None and at_ms <= time.time() * 1000 + 60_000


def _tail(answer: Any) -> tuple[int, int]:
    found = _OFFSET.fullmatch(answer.headers.get("Stream-Next-Offset", ""))
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def _token(at: tuple[int, int]) -> str:
    return f"{at[0]:016d}_{at[1]:016d}"


class _Reader:
    """Reads a stream's records in order, as appends ask for their digests."""

    def __init__(self, live: Cluster, row: Row) -> None:
        self.stream_id: int = row["stream_id"]
        self._live = live
        self._stream = row["bucket"], row["stream"]
        self._record = row["start_record"]
        self._digests: list[bytes] = []
        # Before which records are gone: trimmed, perhaps since the log's end.
        self._earliest = 0

    def compare(self, start: int, expected: bytes) -> _Told | None:
        """The first record that differs, of those from `start` on with these digests."""
        for number in range(start, start + len(expected) // _DIGEST_BYTES):
            at = (number - start) * _DIGEST_BYTES
            digest = expected[at : at + _DIGEST_BYTES]
            found = self._digest(number)
            if found is not None and found != digest:
                return "live_differs", str(number), f"digest {digest.hex()}", f"{found.hex()}"
        return None

    def _digest(self, number: int) -> bytes | None:
        """A record's digest; None if the record is gone."""
        if number < self._earliest:
            return None
        while number >= self._record + len(self._digests):
            following = self._record + len(self._digests)
            self._record, self._digests = max(number, following), []
            if not self._read():
                return None
            if number < self._record:
                return None
        digest: bytes = self._digests[number - self._record]
        return digest

    def _read(self) -> bool:
        """Read on; False if there are no more records."""
        query = {"record": self._record, "framing": "lengths", "max_bytes": _READ_BYTES}
        answer = self._live.ask("GET", *self._stream, **query)
        if answer.status == 410:
            earliest = _OFFSET.fullmatch(answer.headers.get("Stream-Earliest-Offset", ""))
            if earliest is None:
                self._earliest = 2**62  # deleted since
                return False
            self._earliest = self._record = int(earliest[1])
            return self._read()
        if answer.status != 200:
            self._earliest = 2**62
            return False
        body = memoryview(answer.data)
        (count,) = _COUNT.unpack_from(body)
        if not count:
            self._earliest = 2**62
            return False
        at = _COUNT.size * (count + 1)
        for length in unpack_from(f">{count}I", body, _COUNT.size):
            self._digests.append(sha256(body[at : at + length]).digest()[:_DIGEST_BYTES])
            at += length
        return True
