"""Fan-out by server-sent events: one writer, many subscribers, one loop that reads them all."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.client import Client, render
from bench.errors import RunFailed

_CONTENT_TYPE = "text/plain"
_HOST = "127.0.0.1"
_MESSAGE_BYTES = 100
_WARM_UP_MESSAGES = 10
_PAUSE_S = 0.02
_TIMEOUT_S = 30.0
_MAX_DURATION_S = 40.0
_READY = b"event: control"
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

    def _take(self) -> bytes:
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise RunFailed("the server closed a subscriber's connection")
        return data


class Audience:
    """All subscribers and the writer."""

    def __init__(self, writer: Client, subscribers: Sequence[Subscriber], target: str) -> None:
        self._writer = writer
        self._count = len(subscribers)
        self._target = target
        self._sent = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(writer, selectors.EVENT_READ, None)
        for subscriber in subscribers:
            self._selector.register(subscriber.socket, selectors.EVENT_READ, subscriber)

    def close(self) -> None:
        self._selector.close()

    def publish(self) -> list[float]:
        """Append one message; return each subscriber's latency in ms.

        The clock starts before the first byte of the POST is sent, and whoever has the message
        is read at once, be the POST answered or not.
        """
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
                    answered = self._check_answer()
                elif key.data.receive(sought):
                    latencies.append((time.perf_counter() - started) * 1e3)
        return latencies

    def pause(self) -> None:
        """Let the server come to rest, and take the control events that trail the data."""
        until = time.perf_counter() + _PAUSE_S
        while (left := until - time.perf_counter()) > 0:
            for key, _ in self._selector.select(left):
                if key.data is None:
                    raise RunFailed("the server closed the writer's connection")
                key.data.discard()

    def _check_answer(self) -> bool:
        status = self._writer.receive().status
        if status not in (200, 204):
            raise RunFailed(f"an append with subscribers was answered with {status}")
        return True


def fan_out(port: int, target: str, *, subscribers: int, duration_s: float) -> list[float]:
    """Publish for `duration_s` to so many subscribers; all latencies of all messages, in ms."""
    with ExitStack() as stack:
        writer = stack.enter_context(Client(port))
        writer.expect("PUT", target, 201, content_type=_CONTENT_TYPE)
        readers = []
        for _ in range(subscribers):
            reader = Subscriber(port, target)
            stack.callback(reader.socket.close)
            readers.append(reader)
        for reader in readers:
            reader.await_ready()
        audience = Audience(writer, readers, target)
        stack.callback(audience.close)
        for _ in range(_WARM_UP_MESSAGES):
            audience.publish()
            audience.pause()
        latencies: list[float] = []
        # Servers end an SSE connection after a minute or so, as the protocol advises.
        until = time.monotonic() + min(duration_s, _MAX_DURATION_S)
        while time.monotonic() < until:
            latencies += audience.publish()
            audience.pause()
        return latencies
