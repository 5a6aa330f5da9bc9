"""A proxy of TCP connections that keeps the HTTP/1.1 exchanges it carries."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

import h11

_PIECE_BYTES = 64 * 1024
_POLL_S = 0.05


@dataclass
class Exchange:
    """A request and its answer, as they went over the wire; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    status: int = 0
    answer_headers: dict[str, str] = field(default_factory=dict)
    answer: bytearray = field(default_factory=bytearray)


class RecordingProxy:
    """Listens on a free port; `exchanges` are in the order in which their requests began."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_POLL_S)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.exchanges: list[Exchange] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> RecordingProxy:
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
        while not self._over.is_set():
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._carry, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _carry(self, client: socket.socket) -> None:
        record = _Connection(self.exchanges)
        with (
            client,
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self._upstream_port)) as server,
        ):
            while not self._over.is_set():
                ready = select.select([client, server], [], [], _POLL_S)[0]
                for source in ready:
                    piece = source.recv(_PIECE_BYTES)
                    # Recorded before it is passed on: what the client saw is in the record.
                    if source is client:
                        record.requested(piece)
                        server.sendall(piece)
                    else:
                        record.answered(piece)
                        client.sendall(piece)
                    if not piece:
                        return


class _Connection:
    """Parses both directions of one connection, one exchange after the other."""

    def __init__(self, exchanges: list[Exchange]) -> None:
        self._exchanges = exchanges
        self._begin()

    def _begin(self) -> None:
        self._requests = h11.Connection(h11.SERVER)
        self._answers = h11.Connection(h11.CLIENT)
        self._exchange: Exchange | None = None

    def requested(self, piece: bytes) -> None:
        self._requests.receive_data(piece)
        while True:
            event = self._requests.next_event()
            if isinstance(event, h11.Request):
                self._exchange = Exchange(
                    event.method.decode(), event.target.decode(), _decoded(event.headers)
                )
                self._exchanges.append(self._exchange)
                self._answers.send(event)
            elif isinstance(event, h11.Data):
                assert self._exchange is not None
                self._exchange.body += event.data
            else:
                return

    def answered(self, piece: bytes) -> None:
        self._answers.receive_data(piece)
        while True:
            event = self._answers.next_event()
            if isinstance(event, h11.Response):
                assert self._exchange is not None
                self._exchange.status = event.status_code
                self._exchange.answer_headers = _decoded(event.headers)
            elif isinstance(event, h11.Data):
                assert self._exchange is not None
                self._exchange.answer += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._begin()  # Clients here never pipeline.
                return
            else:
                return


def _decoded(headers: h11._headers.Headers) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers}
