"""Appends and their outcomes, recorded outside of the server they were sent to."""

from __future__ import annotations

import http.client
import re
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.support.repeating import served

TEXT = {"Content-Type": "text/plain"}
_TIMEOUT_S = 15.0
_PAYLOAD = re.compile(rb"<[^<>]*>")


@dataclass
class Entry:
    """One append: where it began and ended if it was acknowledged."""

    payload: bytes
    start: str = ""
    end: str = ""


@dataclass
class Stream:
    entries: list[Entry] = field(default_factory=list)
    unknown: set[bytes] = field(default_factory=set)
    tail: str = ""
    exists: bool = False


class Ledger:
    """One writer for some streams, through any given port."""

    def __init__(self, seed: int = 1, streams: int = 4, bucket: str = "ledger") -> None:
        self._random = Random(seed)
        self._numbers = 0
        self.streams = {f"/v1/stream/{bucket}/s{number}": Stream() for number in range(streams)}
        self.counts: Counter[str] = Counter()

    @property
    def acknowledged_bytes(self) -> int:
        return sum(len(e.payload) for s in self.streams.values() for e in s.entries)

    def write(self, port: int, appends: int, size: int = 300) -> None:
        """Append up to `size` bytes at a time; ends early when the server stops."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        try:
            for _ in range(appends):
                path = self._random.choice(list(self.streams))
                self._append(connection, path, size)
        except (OSError, http.client.HTTPException):
            self.counts["connection lost"] += 1
        finally:
            connection.close()

    def _append(self, connection: http.client.HTTPConnection, path: str, size: int) -> None:
        stream = self.streams[path]
        if not stream.exists:
            status, headers, _ = ask(connection, "PUT", path, TEXT)
            assert status in (200, 201, 503), status
            if status == 503:
                return
            stream.exists, stream.tail = True, headers["Stream-Next-Offset"]
        self._numbers += 1
        filling = bytes(self._random.choices(b"abcdef", k=self._random.randrange(size)))
        payload = b"<%d.%b>" % (self._numbers, filling)
        stream.unknown.add(payload)
        status, headers, body = ask(connection, "POST", path, TEXT, payload)
        if status == 204:
            end = headers["Stream-Next-Offset"]
            # Where an append of unknown outcome may be in between, only the end is known.
            others = stream.unknown - {payload}
            stream.entries.append(Entry(payload, "" if others else stream.tail, end))
            stream.tail = end
            stream.unknown.discard(payload)
            self.counts["acknowledged"] += 1
        elif status == 503 and b"OUTCOME_UNKNOWN" not in body:
            assert int(headers["Retry-After"]) >= 1, "a refusal says when to come again"
            stream.unknown.discard(payload)
            self.counts["refused"] += 1
        else:
            assert status == 503, (status, body)
            self.counts["unknown"] += 1

    def delete(self, port: int, path: str) -> None:
        """Delete a stream for good; the ledger forgets it."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        status, _, body = ask(connection, "DELETE", path, {})
        connection.close()
        assert status == 204, (status, body)
        del self.streams[path]

    def verify(self, port: int) -> None:
        """Everything acknowledged is there once, in order, at its offset, and nothing else except
        appends of unknown outcome, at most once (I1)."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        for path, stream in self.streams.items():
            if stream.exists:
                self._verify(connection, path, stream)
        connection.close()

    def _verify(self, connection: http.client.HTTPConnection, path: str, stream: Stream) -> None:
        content, tail = read_whole(connection, path)
        found = _PAYLOAD.findall(content)
        assert b"".join(found) == content, f"{path} holds what nobody appended"
        assert max(Counter(found).values(), default=1) == 1, f"{path} holds something twice"
        acknowledged = [entry.payload for entry in stream.entries]
        assert [one for one in found if one not in stream.unknown] == acknowledged, path
        ends = {}
        end = 0
        for payload in found:
            end += len(payload)
            ends[payload] = end
        for entry in stream.entries:
            assert _byte(entry.end) == ends[entry.payload], (path, entry)
            if entry.start:
                assert _byte(entry.start) == ends[entry.payload] - len(entry.payload), (path, entry)
        for entry in self._random.sample(stream.entries, min(5, len(stream.entries))):
            if entry.start:
                query = f"{path}?offset={entry.start}"
                status, _, body = served(lambda query=query: ask(connection, "GET", query, {}))
                assert status == 200, (status, body)
                assert body.startswith(entry.payload), (path, entry)
        if stream.entries and not stream.unknown:
            assert tail == stream.tail, path


def _byte(offset: str) -> int:
    """The position in bytes that an offset names."""
    return int(offset.rpartition("_")[2])


def read_whole(
    connection: http.client.HTTPConnection, path: str, offset: str = "-1"
) -> tuple[bytes, str]:
    """All of a stream from an offset on, and its tail."""
    content = b""
    while True:
        page = f"{path}?offset={offset}"
        status, headers, body = served(lambda page=page: ask(connection, "GET", page, {}))
        assert status == 200, (path, offset, status, body)
        content, offset = content + body, headers["Stream-Next-Offset"]
        if headers.get("Stream-Up-To-Date") == "true":
            return content, offset


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes | None = None,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.headers, response.read()
