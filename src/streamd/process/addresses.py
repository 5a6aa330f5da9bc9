"""IP addresses, as clients and peers are counted by them."""

from __future__ import annotations

import socket


def client_of(host: str) -> str:
    """The client that `host`, an IP address, counts as: with IPv6 its /64, because one client has a
    whole /64."""
    if ":" not in host:
        return host
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8].hex()


def is_loopback_client(client: str) -> bool:
    """Whether a client, as `client_of` gives it, is on this machine."""
    return client.startswith("127.") or client == "0" * 16
