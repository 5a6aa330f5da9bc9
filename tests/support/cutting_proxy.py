"""A proxy of TCP connections that cuts each of them after some bytes, wherever that is."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

_PIECE_BYTES = 64 * 1024
_POLL_S = 0.05
_RESET = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Listens on a free port. `budget` says after how many bytes, of both directions together, a
    connection is cut; None lets it live."""

    def __init__(self, upstream_port: int, budget: Callable[[], int | None]) -> None:
        self._upstream_port = upstream_port
        self._budget = budget
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.cuts = 0
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> CuttingProxy:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        self._listener.settimeout(_POLL_S)
        while not self._over.is_set():
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._carry, args=(client, self._budget()))
                self._threads.append(thread)
                thread.start()

    def _carry(self, client: socket.socket, budget: int | None) -> None:
        with (
            client,
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self._upstream_port)) as server,
        ):
            other = {client: server, server: client}
            while not self._over.is_set():
                for source in select.select([client, server], [], [], _POLL_S)[0]:
                    piece = source.recv(_PIECE_BYTES)
                    if not piece:
                        return
                    if budget is not None and len(piece) >= budget:
                        other[source].sendall(piece[:budget])
                        self.cuts += 1
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                        return
                    other[source].sendall(piece)
                    budget = None if budget is None else budget - len(piece)
