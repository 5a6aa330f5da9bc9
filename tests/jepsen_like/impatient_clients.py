"""Clients that leave in the middle of an append, or before its answer."""

from __future__ import annotations

import socket

from tests.jepsen_like.clients import Client, SharedByClients, path_of

_CONNECT_TIMEOUT_S = 1.0
_PAUSE_S = 0.2


class ImpatientClient(Client):
    """In turn: sends half a body and leaves, which must have no effect; or the whole body and
    leaves at once, which may take effect once."""

    def __init__(self, shared: SharedByClients, label: str, node_id: int) -> None:
        super().__init__(shared, label, node_id, pinned=False)
        self._sent = 0

    def step(self) -> None:
        self.stopping.wait(_PAUSE_S)
        self._sent += 1
        is_whole = self._sent % 2 == 0
        stream = self.random.choice(self.shared.streams)
        payload = b"<%s.%d>" % (self.label.encode(), self._sent)
        pending = self.invoke("append", stream, payload=payload)
        try:
            self._send_and_leave(stream, payload, is_whole=is_whole)
        except OSError:
            self.move_on()
        if is_whole:
            pending.unknown("left without an answer")
            self._lives += 1
            self.shared.counts["left before the answer"] += 1
        else:
            pending.fail("left in the middle of the body")
            self.shared.counts["left in mid-append"] += 1

    def _send_and_leave(self, stream: str, payload: bytes, *, is_whole: bool) -> None:
        """Raises OSError."""
        head = (
            f"POST {path_of(stream)} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n"
        ).encode()
        address = "127.0.0.1", self.shared.ports[self.node_id]
        with socket.create_connection(address, _CONNECT_TIMEOUT_S) as connection:
            connection.sendall(head + (payload if is_whole else payload[:-2]))
