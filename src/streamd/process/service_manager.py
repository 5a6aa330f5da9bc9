"""Tells systemd, or what speaks its protocol, that this process is ready, stopping and alive.

The protocol is a datagram to the socket that ``NOTIFY_SOCKET`` names: sd_notify(3). Without that
variable nothing happens.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

import trio

READY = "READY=1"
STOPPING = "STOPPING=1"
_ALIVE = "WATCHDOG=1"
_US_PER_S = 1_000_000
# How often it is told within the interval after which a silent process is killed.
_TIMES = 3


def notify(message: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send one message. A service manager that does not take it changes nothing for the service."""
    name = environment.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):
        return
    address = f"\0{name[1:]}" if name.startswith("@") else name
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        # A manager that does not read must not stop the event loop.
        sender.setblocking(False)
        sender.sendto(message.encode(), address)


async def keep_watchdog_quiet(environment: Mapping[str, str] = os.environ) -> None:
    """Say that the event loop runs, as often as the service manager wants to hear it.

    Returns at once if it does not watch this process.
    """
    interval_s = _interval_s(environment)
    if interval_s is None:
        return
    while True:
        notify(_ALIVE, environment)
        await trio.sleep(interval_s)


def _interval_s(environment: Mapping[str, str]) -> float | None:
    """The time between two messages; None without a watchdog, or with that of another process."""
    watched = environment.get("WATCHDOG_USEC", "")
    if not watched.isdecimal() or not int(watched):
        return None
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(watched) / _US_PER_S / _TIMES
