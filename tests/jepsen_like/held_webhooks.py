"""A receiver of webhooks that answers each of them when the test says so."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any

_DEADLINE_S = 45.0


class Delivery:
    """A webhook that was read whole, and awaits its answer."""

    def __init__(self, connection: socket.socket, body: dict[str, Any]) -> None:
        self._connection = connection
        self.body = body
        self.generation: int = body["generation"]
        self.came_at = time.monotonic()

    def answer(self, status: int = 200, *, done: bool = False) -> None:
        """Answer it; the server that asked may be dead by now."""
        body = b'{"done":true}' if done else b"{}"
        self._send(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)), body)
        self._connection.close()

    def begin_answer(self) -> None:
        """Say that it is done, but for the last byte."""
        self._send(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n", b'{"done":true')

    def _send(self, head: bytes, body: bytes) -> None:
        with suppress(OSError):
            self._connection.sendall(head + body)


class HeldWebhooks:
    """Listens on a port of this machine. While `is_deaf` it accepts connections, and reads none of
    them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.is_deaf = False
        self.unread: list[socket.socket] = []
        self._arrived: dict[str, SimpleQueue[Delivery]] = {}

    def __enter__(self) -> HeldWebhooks:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.hear()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def hear(self) -> None:
        """Read what comes from now on, and close the connections before."""
        self.is_deaf = False
        while self.unread:
            self.unread.pop().close()

    def next(self, subscription: str) -> Delivery:
        """The next webhook of a subscription. Raises `queue.Empty` if none comes."""
        return self._of(subscription).get(timeout=_DEADLINE_S)

    def _of(self, subscription: str) -> SimpleQueue[Delivery]:
        return self._arrived.setdefault(subscription, SimpleQueue())

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self.is_deaf:
                self.unread.append(connection)
            else:
                threading.Thread(target=self._read, args=[connection], daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        raw = b""
        while b"\r\n\r\n" not in raw:
            if not (piece := connection.recv(65_536)):
                return
            raw += piece
        head, _, body = raw.partition(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:])
        while len(body) < int(fields["content-length"]):
            body += connection.recv(65_536)
        delivery = Delivery(connection, json.loads(body))
        self._of(delivery.body["subscription_id"]).put(delivery)
