"""A web server that publishes keys, as an identity provider does, and fails in its ways."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PIECE = b" " * 65536


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients leave when they have had enough."""


class KeyServer:
    """Answers every request by `answer`, which a test may replace at any time."""

    def __init__(self, keys: bytes, tls: ssl.SSLContext | None) -> None:
        self.publish(keys)
        self.asked: list[str] = []  # Paths.
        self.sent_bytes = 0  # Of bodies.
        self._released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        scheme, host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
        self.url = f"{scheme}://{host}:{self.port}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # -- its answers --

    def publish(self, body: bytes, status: int = 200, **headers: str) -> None:
        """Answer with this body."""

        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                request.send_header(name.replace("_", "-"), value)
            request.end_headers()
            request.wfile.write(body)

        self.answer: Callable[[BaseHTTPRequestHandler], None] = answer

    def hang(self) -> None:
        """Never answer."""
        self.answer = lambda _: self._wait()

    def send_for_ever(self, size: int) -> None:
        """Answer with so many bytes, as fast as they are taken."""

        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(200)
            request.end_headers()
            while self.sent_bytes < size:
                try:
                    request.wfile.write(_PIECE)
                except OSError:
                    return
                self.sent_bytes += len(_PIECE)

        self.answer = answer

    def trickle(self, body: bytes) -> None:
        """Answer with the first byte of a body and no more."""

        def answer(request: BaseHTTPRequestHandler) -> None:
            request.send_response(200)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body[:1])
            request.wfile.flush()
            self._wait()

        self.answer = answer

    def disconnect(self) -> None:
        """End each connection without an answer."""

        def answer(request: BaseHTTPRequestHandler) -> None:
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True

        self.answer = answer

    def _wait(self) -> None:
        self._released.wait()
        raise ConnectionAbortedError


@contextmanager
def key_server(keys: bytes, tls: ssl.SSLContext | None = None) -> Iterator[KeyServer]:
    """A server that publishes keys until the block ends."""
    server = KeyServer(keys, tls)
    try:
        yield server
    finally:
        server.close()
