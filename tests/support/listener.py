"""A listener whose connections are served in threads: what the proxies of the tests share."""

from __future__ import annotations

import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

_PIECE_BYTES = 64 * 1024
_POLL_S = 0.05


class Listener(ABC):
    """Listens on a free port; inside a `with` it serves each connection in a thread.

    At the end of the `with`, `over` is set, open connections end, and all threads are joined.
    """

    def __init__(self) -> None:
        self.over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_POLL_S)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @abstractmethod
    def serve(self, client: socket.socket) -> None:
        """Serve a connection, in a thread of its own; `OSError` ends it. It is closed after."""

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.over.set()
        self._threads[0].join()
        self._listener.close()
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while not self.over.is_set():
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,))
                self._clients.append(client)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            self.serve(client)


def carry(
    client: socket.socket, upstream_port: int, pass_on: Callable[[bool, bytes, socket.socket], bool]
) -> None:
    """Carry bytes both ways between a client and a server on this machine, until one ends.

    ``pass_on(is_request, piece, to)`` sends each piece; it returns whether to continue. An empty
    piece is the end.
    """
    with socket.create_connection(("127.0.0.1", upstream_port)) as server:
        other = {client: server, server: client}
        while True:
            for source in select.select([client, server], [], [])[0]:
                piece = source.recv(_PIECE_BYTES)
                if not pass_on(source is client, piece, other[source]) or not piece:
                    return
