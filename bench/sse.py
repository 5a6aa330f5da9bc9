"""Fan-out by server-sent events: one writer, many subscribers, one loop that reads them all."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.client import Client, render
from bench.errors import RunFailed
from bench.process import ServerProcess, Spent

_CONTENT_TYPE = "text/plain"
_HOST = "127.0.0.1"
_MESSAGE_BYTES = 100
_WARM_UP_S = 1.0
_REST_S = 0.02
_WRITER_IDLE_S = 2.0
_TIMEOUT_S = 30.0
_MAX_DURATION_S = 40.0
_READY = b"event: control"
_LAST_CHUNK = b"0\r\n\r\n"
_RECEIVE_BYTES = 65536


class Subscriber:
    """One live reader, on a connection of its own."""

    def __init__(self, port: int, target: str) -> None:
        self.socket = socket.create_connection((_HOST, port), timeout=_TIMEOUT_S)
        self.socket.sendall(render(_HOST, "GET", f"{target}?offset=-1&live=sse", None, b""))
        self._tail = b""

    def await_ready(self) -> None:
        """Wait for the first control event: from here on the server pushes."""
        while not self.receive(_READY):
            pass
        self.socket.setblocking(False)

    def receive(self, sought: bytes) -> bool:
        """Take what has arrived; whether `sought` has come to its end with it."""
        # An event may be cut anywhere.
        window = self._tail + self._take()
        found = sought in window
        self._tail = b"" if found else window[-len(sought) :]
        return found

    def discard(self) -> None:
        """Take what has arrived and forget it."""
        self._take()
        self._tail = b""

    def has_ended(self) -> bool:
        """Whether the server has ended the response or closed the connection, after what came."""
        last = b""
        try:
            while data := self.socket.recv(_RECEIVE_BYTES):
                last = data
        except BlockingIOError:
            return last.endswith(_LAST_CHUNK)
        except OSError:
            pass
        return True

    def _take(self) -> bytes:
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise RunFailed("the server closed a subscriber's connection")
        return data


class Subscribers:
    """All subscribers and the writer."""

    def __init__(self, port: int, target: str, subscribers: Sequence[Subscriber]) -> None:
        self._port = port
        self._target = target
        self._count = len(subscribers)
        self._sent = 0
        self._writer = Client(port)
        self._answered_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        for subscriber in subscribers:
            self._selector.register(subscriber.socket, selectors.EVENT_READ, subscriber)

    def close(self) -> None:
        self._selector.close()
        self._writer.close()

    def publish(self) -> list[float]:
        """Append one message; return each subscriber's latency in ms.

        The clock starts before the first byte of the POST is sent, and a subscriber that has the
        message is read at once, whether the POST was answered or not.
        """
        self._keep_writer()
        self._selector.register(self._writer, selectors.EVENT_READ, None)
        self._sent += 1
        sought = b"<%d>" % self._sent
        latencies: list[float] = []
        answered = False
        started = time.perf_counter()
        self._writer.send(
            "POST", self._target, content_type=_CONTENT_TYPE, body=sought.rjust(_MESSAGE_BYTES)
        )
        while not answered or len(latencies) < self._count:
            ready = self._selector.select(_TIMEOUT_S)
            if not ready:
                raise RunFailed(f"{len(latencies)} of {self._count} subscribers had a message")
            for key, _ in ready:
                if key.data is None:
                    self._take_answer()
                    answered = True
                elif key.data.receive(sought):
                    latencies.append((time.perf_counter() - started) * 1e3)
        return latencies

    def rest(self) -> None:
        """Let the server become idle, and take the control events that trail the data."""
        until = time.perf_counter() + _REST_S
        while (left := until - time.perf_counter()) > 0:
            for key, _ in self._selector.select(left):
                key.data.discard()

    def _keep_writer(self) -> None:
        """Servers close idle connections, Node after 5 s; a slow fan-out takes longer."""
        if time.monotonic() - self._answered_at > _WRITER_IDLE_S:
            self._writer.close()
            self._writer = Client(self._port)

    def _take_answer(self) -> None:
        status = self._writer.receive().status
        if status not in (200, 204):
            raise RunFailed(f"an append with subscribers was answered with {status}")
        self._selector.unregister(self._writer)
        self._answered_at = time.monotonic()


def fan_out(
    server: ServerProcess, target: str, *, subscribers: int, duration_s: float
) -> tuple[list[float], float | None]:
    """Publish for `duration_s` to so many subscribers.

    Returns all latencies of all messages, in ms, and the server's processor time by their number,
    in µs, where the system tells.
    """
    with Client(server.port) as client:
        client.expect("PUT", target, 201, content_type=_CONTENT_TYPE)
    with ExitStack() as stack:
        readers = []
        for _ in range(subscribers):
            reader = Subscriber(server.port, target)
            stack.callback(reader.socket.close)
            readers.append(reader)
        for reader in readers:
            reader.await_ready()
        fan_out = Subscribers(server.port, target, readers)
        stack.callback(fan_out.close)
        _publish_for(fan_out, _WARM_UP_S)
        spent = Spent(server)
        # Servers end an SSE connection after a minute or so, as the protocol advises.
        latencies = _publish_for(fan_out, min(duration_s, _MAX_DURATION_S))
        return latencies, spent.us_each(len(latencies))


def _publish_for(subscribers: Subscribers, duration_s: float) -> list[float]:
    """At least one message, however slow the server is."""
    latencies: list[float] = []
    until = time.monotonic() + duration_s
    while not latencies or time.monotonic() < until:
        latencies += subscribers.publish()
        subscribers.rest()
    return latencies
