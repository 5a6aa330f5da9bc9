"""IP addresses, as clients and peers are counted by them."""

from __future__ import annotations

import socket


def client_of(host: str) -> str:
    """The client that `host`, an IP address, counts as: with IPv6 its /64, because one client has a
    whole /64."""
    if ":" not in host:
        return host
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8].hex()
