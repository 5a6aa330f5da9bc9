"""Addresses: what clients and peers are counted by, and which are of this machine."""

from __future__ import annotations

import socket
from ipaddress import ip_address


def client_of(host: str) -> str:
    """The client that `host`, an IP address, counts as: with IPv6 its /64, because one client has a
    whole /64."""
    if ":" not in host:
        return host
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8].hex()


def is_loopback_client(client: str) -> bool:
    """Whether a client, as `client_of` gives it, is on this machine."""
    return client.startswith("127.") or client == "0" * 16


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a port of `host`, a name or an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"
