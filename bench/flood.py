"""`python -m bench.flood`: a hostile client, in a process of its own.

It opens many connections and does one thing on all of them until its standard input ends. Then it
prints what it got: answers by status, and how often it connected.
"""

from __future__ import annotations

import re
import select
import socket
import sys
from collections import Counter
from collections.abc import Callable

import click

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_CONNECTS_AT_ONCE = 64
_RECEIVE_BYTES = 1 << 16
_PIPELINED = 32


class Flood:
    """`count` connections from `source` to a port, each of which sends `request` in some way."""

    def __init__(self, port: int, source: str, count: int, request: bytes) -> None:
        self.got: Counter[str] = Counter()
        self._address = ("127.0.0.1", port)
        self._source = source
        self._count = count
        self._request = request
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._unsent: dict[int, bytes] = {}

    def run(self, behaviour: str) -> None:
        """Go on until standard input ends. "ready" is printed when all connections were made."""
        act: Callable[[int], None] = getattr(self, behaviour)
        self._epoll.register(sys.stdin.fileno(), select.EPOLLIN)
        is_ready = False
        while True:
            for _ in range(min(_CONNECTS_AT_ONCE, self._count - len(self._sockets))):
                self._connect(act)
            if not is_ready and self.got["connections"] >= self._count:
                is_ready = True
                print("ready", flush=True)
            for descriptor, events in self._epoll.poll(0.01):
                if descriptor == sys.stdin.fileno():
                    return
                self._serve(descriptor, events, act)

    # -- what it does on each connection, when it can write and whenever it got something ---------

    def idle(self, descriptor: int) -> None:
        """Nothing."""

    def half(self, descriptor: int) -> None:
        """Send half a request, and no more."""
        if descriptor not in self._unsent:
            self._unsent[descriptor] = b""
            self._sockets[descriptor].send(self._request[: len(self._request) // 2])

    def ask(self, descriptor: int) -> None:
        """Send the next request when the last one is answered."""
        self._sockets[descriptor].send(self._request)

    def pipeline(self, descriptor: int) -> None:
        """Send as many requests as the connection takes, without waiting for answers."""
        unsent = self._unsent.get(descriptor, b"")
        for _ in range(_PIPELINED):
            unsent = unsent or self._request * _PIPELINED
            try:
                unsent = unsent[self._sockets[descriptor].send(unsent) :]
            except BlockingIOError:
                break
        self._unsent[descriptor] = unsent

    def churn(self, descriptor: int) -> None:
        """Send one request, and leave without waiting for the answer."""
        self._sockets[descriptor].send(self._request)
        self._close(descriptor)

    # ---------------------------------------------------------------------------------------------

    def _connect(self, act: Callable[[int], None]) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: more ports are free.
        sock.bind((self._source, 0))
        sock.connect(self._address)
        sock.setblocking(False)
        self.got["connections"] += 1
        self._sockets[sock.fileno()] = sock
        wanted = select.EPOLLOUT if act == self.pipeline else 0
        self._epoll.register(sock.fileno(), select.EPOLLIN | wanted)
        self._guarded(act, sock.fileno())

    def _serve(self, descriptor: int, events: int, act: Callable[[int], None]) -> None:
        if events & select.EPOLLIN:
            try:
                data = self._sockets[descriptor].recv(_RECEIVE_BYTES)
            except OSError:
                data = b""
            if not data:
                self.got["closed"] += 1
                self._close(descriptor)
                return
            self.got.update(status.decode() for status in _STATUS.findall(data))
        self._guarded(act, descriptor)

    def _guarded(self, act: Callable[[int], None], descriptor: int) -> None:
        try:
            act(descriptor)
        except OSError:
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        if (sock := self._sockets.pop(descriptor, None)) is not None:
            self._unsent.pop(descriptor, None)
            self._epoll.unregister(descriptor)
            sock.close()


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--source", default="127.0.0.2")
@click.option("--connections", type=int, required=True)
@click.option("--behaviour", type=click.Choice(["idle", "half", "ask", "pipeline", "churn"]))
@click.option("--target", required=True)
@click.option("--token", default="none")
def main(port: int, source: str, connections: int, behaviour: str, target: str, token: str) -> None:
    """Flood a server."""
    request = (
        f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\n"
    ).encode() + b"x" * 100
    flood = Flood(port, source, connections, request)
    flood.run(behaviour)
    print(" ".join(f"{name}={count}" for name, count in sorted(flood.got.items())), flush=True)


if __name__ == "__main__":
    main()
