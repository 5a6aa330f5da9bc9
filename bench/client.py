"""A small HTTP/1.1 client over one kept-alive socket: so little that it does not affect the
figures."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from bench.errors import RunFailed

_HEAD_END = b"\r\n\r\n"
_RECEIVE_BYTES = 1 << 20


@dataclass(frozen=True)
class Answer:
    """A response; its body was counted and dropped."""

    status: int
    headers: Mapping[str, str]
    body_bytes: int


class Client:
    """One connection, one request at a time. Raises `OSError` on network trouble."""

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        timeout_s: float = 60.0,
        token: str | None = None,
    ) -> None:
        self._host = host
        self._token = token
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._scratch = memoryview(bytearray(_RECEIVE_BYTES))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def request(
        self, method: str, target: str, *, content_type: str | None = None, body: bytes = b""
    ) -> Answer:
        """Send a request and wait for the whole answer."""
        self.send(method, target, content_type=content_type, body=body)
        return self.receive()

    def fileno(self) -> int:
        """For selectors: readable means that an answer is arriving."""
        return self._socket.fileno()

    def send(
        self, method: str, target: str, *, content_type: str | None = None, body: bytes = b""
    ) -> None:
        """Send a request; `receive` must follow before the next one."""
        raw = render(self._host, method, target, content_type, body, self._token)
        self._socket.sendall(raw)

    def receive(self) -> Answer:
        """Wait for the whole answer to what was sent."""
        status, headers = self._read_head()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            received = self._skip_chunks()
        else:
            received = int(headers.get("content-length", "0")) if status != 204 else 0
            self._skip(received)
        return Answer(status, headers, received)

    def expect(
        self,
        method: str,
        target: str,
        *statuses: int,
        content_type: str | None = None,
        body: bytes = b"",
    ) -> Answer:
        """Like `request`; any other status than those given is a `RunFailed`."""
        answer = self.request(method, target, content_type=content_type, body=body)
        if answer.status not in statuses:
            raise RunFailed(f"{method} {target} was answered with {answer.status}")
        return answer

    def _read_head(self) -> tuple[int, dict[str, str]]:
        while (end := self._buffer.find(_HEAD_END)) < 0:
            self._receive()
        head = bytes(self._buffer[:end]).decode("latin-1")
        del self._buffer[: end + len(_HEAD_END)]
        status_line, *lines = head.split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return int(status_line.split()[1]), {
            name.lower(): value.strip() for name, _, value in pairs
        }

    def _skip_chunks(self) -> int:
        total = 0
        while size := int(self._read_line().partition(b";")[0], 16):
            self._skip(size)
            self._read_line()
            total += size
        while self._read_line():
            pass
        return total

    def _read_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._receive()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _skip(self, count: int) -> None:
        """Receive `count` bytes of body, past the buffer wherever possible."""
        buffered = min(count, len(self._buffer))
        del self._buffer[:buffered]
        left = count - buffered
        while left:
            received = self._socket.recv_into(self._scratch, min(left, _RECEIVE_BYTES))
            if not received:
                raise ConnectionError("the server closed the connection in mid-answer")
            left -= received

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data


def render(
    host: str,
    method: str,
    target: str,
    content_type: str | None,
    body: bytes,
    token: str | None = None,
) -> bytes:
    """The bytes of a request."""
    head = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    if token is not None:
        head.append(f"Authorization: Bearer {token}")
    if content_type is not None:
        head.append(f"Content-Type: {content_type}")
    if body:
        head.append(f"Content-Length: {len(body)}")
    elif method in ("PUT", "POST"):
        head.append("Content-Length: 0")
    return "\r\n".join([*head, "", ""]).encode() + body
