"""Sockets that listen for clients."""

from __future__ import annotations

import socket
from contextlib import suppress

from streamd.http.messages import COMMON_HEAD, error_response
from streamd.http.wire import STATUS_LINES, body_parts

_BACKLOG = 4096


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening, non-blocking sockets for every address of `host`. Raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in found:
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def turn_away(sock: socket.socket) -> None:
    """Tell one client too many to come again, without waiting for anything."""
    refusal = error_response(
        503, "TOO_MANY_CONNECTIONS", "too many connections", b"Retry-After: 1\r\n"
    )
    parts, size = body_parts(refusal.body)
    end = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % size
    with suppress(OSError):
        sock.send(b"".join((STATUS_LINES[503], refusal.head, COMMON_HEAD, end, *parts)))
    sock.close()
