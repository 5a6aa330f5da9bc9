"""A workload that records what the server acknowledged, and checks that it was kept."""

from __future__ import annotations

import http.client
from dataclasses import dataclass, field

PLAIN = "/v1/stream/crash/plain"
PRODUCED = "/v1/stream/crash/produced"
CLOSED = "/v1/stream/crash/closed"
DELETED = "/v1/stream/crash/deleted"
TEXT = {"Content-Type": "text/plain"}


@dataclass
class Stream:
    """The acknowledged parts of a stream, and perhaps one without an answer."""

    parts: list[bytes] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    unanswered: bytes | None = None


class Workload:
    """Runs against one server until done, or until the server stops."""

    def __init__(self) -> None:
        self.streams = {PLAIN: Stream(), PRODUCED: Stream(), CLOSED: Stream(), DELETED: Stream()}
        self.created: set[str] = set()
        self.closed = False
        self.deleted = False
        self.finished = False

    def run(self, port: int) -> None:
        """Do everything once. Returns early when the connection breaks."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            self._run(connection)
            self.finished = True
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()

    def _run(self, connection: http.client.HTTPConnection) -> None:
        for path in self.streams:
            status, _ = _ask(connection, "PUT", path, TEXT)
            assert status == 201, (path, status)
            self.created.add(path)
        for number in range(5):
            self._append(connection, PLAIN, b"<plain %d>" % number, {})
            headers = _stamp(number)
            self._append(connection, PRODUCED, b"<produced %d>" % number, headers)
            self._append(connection, DELETED, b"<deleted %d>" % number, {})
        self._append(connection, CLOSED, b"<last words>", {"Stream-Closed": "true"})
        self.closed = True
        status, _ = _ask(connection, "DELETE", DELETED, {})
        assert status == 204, status
        self.deleted = True

    def _append(
        self, connection: http.client.HTTPConnection, path: str, part: bytes, more: dict[str, str]
    ) -> None:
        stream = self.streams[path]
        stream.unanswered = part
        status, answer = _ask(connection, "POST", path, TEXT | more, part)
        assert status in (200, 204), (path, status)
        stream.unanswered = None
        stream.parts.append(part)
        stream.offsets.append(answer["Stream-Next-Offset"])

    # -- afterwards ---------------------------------------------------------------------------

    def verify(self, port: int) -> None:
        """Everything acknowledged is there once, at its offset, and nothing else except perhaps the
        append under way."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            for path, stream in self.streams.items():
                self._verify_stream(connection, path, stream)
            self._verify_producer(connection)
        finally:
            connection.close()

    def _verify_stream(
        self, connection: http.client.HTTPConnection, path: str, stream: Stream
    ) -> None:
        status, answer, body = _read(connection, path)
        if path == DELETED and self.deleted:
            assert status == 404, "an acknowledged deletion was undone"
            return
        if status == 404:
            assert path not in self.created or (path == DELETED and self._all_appended()), path
            return
        assert status == 200, (path, status)
        acknowledged = b"".join(stream.parts)
        assert body in (acknowledged, acknowledged + (stream.unanswered or b"")), (path, body)
        for offset, part in zip(["-1", *stream.offsets], stream.parts, strict=False):
            _, _, rest = _read(connection, path, offset)
            assert rest.startswith(part), (path, offset, rest)
        if path == CLOSED and self.closed:
            assert answer["Stream-Closed"] == "true", "an acknowledged close was undone"

    def _all_appended(self) -> bool:
        return len(self.streams[DELETED].parts) == 5

    def _verify_producer(self, connection: http.client.HTTPConnection) -> None:
        """Retries of acknowledged requests, and of the one under way, take effect once."""
        stream = self.streams[PRODUCED]
        if PRODUCED not in self.created:
            return
        for number, part in enumerate(stream.parts):
            status, _ = _ask(connection, "POST", PRODUCED, TEXT | _stamp(number), part)
            assert status == 204, f"request {number} was forgotten"
        if stream.unanswered is not None:
            headers = TEXT | _stamp(len(stream.parts))
            status, _ = _ask(connection, "POST", PRODUCED, headers, stream.unanswered)
            assert status in (200, 204), status
        _, _, body = _read(connection, PRODUCED)
        assert body == b"".join(stream.parts) + (stream.unanswered or b"")


def _stamp(seq: int) -> dict[str, str]:
    return {"Producer-Id": "writer", "Producer-Epoch": "0", "Producer-Seq": str(seq)}


def _ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes | None = None,
) -> tuple[int, http.client.HTTPMessage]:
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    response.read()
    return response.status, response.headers


def _read(
    connection: http.client.HTTPConnection, path: str, offset: str = "-1"
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection.request("GET", f"{path}?offset={offset}")
    response = connection.getresponse()
    return response.status, response.headers, response.read()
