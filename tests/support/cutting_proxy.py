"""A proxy of TCP connections that cuts each of them after some bytes, wherever that is."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from tests.support.listener import Listener, carry

_RESET = struct.pack("ii", 1, 0)


class CuttingProxy(Listener):
    """`budget` says after how many bytes, of both directions together, a connection is cut; None
    lets it live."""

    def __init__(self, upstream_port: int, budget: Callable[[], int | None]) -> None:
        super().__init__()
        self._upstream_port = upstream_port
        self._budget = budget
        self.cuts = 0

    def serve(self, client: socket.socket) -> None:
        left = self._budget()

        def pass_on(is_request: bool, piece: bytes, to: socket.socket) -> bool:
            nonlocal left
            if piece and left is not None and len(piece) >= left:
                to.sendall(piece[:left])
                self.cuts += 1
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                return False
            to.sendall(piece)
            left = None if left is None else left - len(piece)
            return True

        carry(client, self._upstream_port, pass_on)
