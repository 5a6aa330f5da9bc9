"""Ports for servers that must know theirs before they listen."""

from __future__ import annotations

import os
import random
import socket

# Below the ports that the system gives to outgoing connections: a stopped server needs its port
# again, which must not be taken meanwhile.
_FIRST, _LAST = 20_000, 32_000
# Concurrent test processes use separate ports.
_PROCESSES = 16
_PER_PROCESS = (_LAST - _FIRST) // _PROCESSES

_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_next = random.SystemRandom().randrange(_PER_PROCESS)


def unused_port() -> int:
    """A port that nobody listens on, no outgoing connection is given, and no other call returns:
    drawn at random, two of a few hundred would soon be the same."""
    global _next
    for _ in range(_PER_PROCESS):
        port = _FIRST + _process % _PROCESSES * _PER_PROCESS + _next
        _next = (_next + 1) % _PER_PROCESS
        with socket.socket() as probe:
            # As servers do; otherwise a port of a server that has just ended would seem in use.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("all ports are taken")
