"""Attempts at a partition as Spark makes them, without Spark: rows in Arrow batches."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa

from streamd.spark.sink.plan import Part
from streamd.spark.sink.settings import Settings
from streamd.spark.sink.task import write_part

Row = tuple[str, bytes]

# Long enough for everything but a server that is not there.
_RETRY_FOR_S = 30.0


def settings(url: str, **other: object) -> Settings:
    """Settings of a sink that makes the streams it writes to, all of JSON."""
    plain = Settings(
        (url,),
        None,
        _RETRY_FOR_S,
        stream=None,
        create="application/json",
        skip_closed=False,
        journal="spark-sink",
        parallel=3,
        same_partitions=False,
    )
    return replace(plain, **other)  # type: ignore[arg-type]


@dataclass
class Sink:
    """A sink with an id of its own, and one run of it."""

    settings: Settings
    sink_id: str
    run: str

    def write(self, rows: Iterable[Row], *, partition: int = 0, epoch: int = 0) -> int:
        """One attempt, as a task does it."""
        part = Part(self.sink_id, partition, epoch, self.run, uuid4().hex)
        return write_part(batches(rows), self.settings, part)

    def restarted(self, **other: object) -> Sink:
        """The same sink in another run, as after a crash of the driver."""
        return Sink(replace(self.settings, **other), self.sink_id, uuid4().hex)  # type: ignore[arg-type]


def new_sink(url: str, **other: object) -> Sink:
    return Sink(settings(url, **other), uuid4().hex, uuid4().hex)


def batches(rows: Iterable[Row], size: int = 50) -> Iterator[pa.RecordBatch]:
    """Rows as they come from Spark, in batches of a few."""
    some: list[Row] = []
    for row in rows:
        some.append(row)
        if len(some) == size:
            yield _batch(some)
            some = []
    if some:
        yield _batch(some)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    streams = pa.array([stream for stream, _ in rows], pa.string())
    records = pa.array([record for _, record in rows], pa.binary())
    return pa.record_batch([streams, records], names=["stream", "record"])


@dataclass
class Streams:
    """A server's streams, read without the sink's code."""

    port: int

    def ask(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {"Content-Type": content_type, "Stream-Closed": "false"}
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read()
        finally:
            connection.close()

    def create(self, name: str, content_type: str = "application/json") -> None:
        status, _, _ = self.ask("PUT", _path(name), content_type=content_type)
        assert status in (200, 201)

    def close(self, name: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("POST", _path(name), headers={"Stream-Closed": "true"})
            assert connection.getresponse().status == 204
        finally:
            connection.close()

    def content(self, name: str) -> bytes:
        """The whole content of a stream, empty if it does not exist."""
        parts, offset = [], "-1"
        while True:
            status, headers, body = self.ask("GET", f"{_path(name)}?offset={offset}")
            if status == 404:
                return b""
            assert status == 200, body
            parts.append(body)
            offset = headers["stream-next-offset"]
            if headers.get("stream-up-to-date") == "true":
                return b"".join(parts)

    def messages(self, name: str) -> list[object]:
        """All messages of a JSON stream."""
        found: list[object] = []
        offset = "-1"
        while True:
            status, headers, body = self.ask("GET", f"{_path(name)}?offset={offset}")
            if status == 404:
                return []
            assert status == 200, body
            found += json.loads(body)
            offset = headers["stream-next-offset"]
            if headers.get("stream-up-to-date") == "true":
                return found

    def records(self, name: str) -> int:
        """How many records a stream has, by its tail."""
        status, headers, _ = self.ask("HEAD", _path(name))
        assert status == 200
        return int(headers["stream-next-offset"].partition("_")[0])


def _path(name: str) -> str:
    return "/v1/stream/" + quote(name)
