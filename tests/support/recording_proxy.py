"""A proxy of TCP connections that keeps the HTTP/1.1 exchanges it carries."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import h11

from tests.support.listener import Listener, carry


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


class RecordingProxy(Listener):
    """`exchanges` are in the order in which their requests began."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__()
        self._upstream_port = upstream_port
        self.exchanges: list[Exchange] = []

    def serve(self, client: socket.socket) -> None:
        record = _Connection(self.exchanges)

        def pass_on(is_request: bool, piece: bytes, to: socket.socket) -> bool:
            # Recorded before it is passed on: what the client saw is in the record.
            if is_request:
                record.requested(piece)
            else:
                record.answered(piece)
            to.sendall(piece)
            return True

        carry(client, self._upstream_port, pass_on)


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
