"""The names of a node: under which Host its own pages and clients reach it."""

from __future__ import annotations

from ipaddress import ip_address

from streamd.config.checks import is_loopback
from streamd.config.settings import ServerConfig, split_address

_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  # compared with, not bound


class HostNames:
    """`localhost` and loopback addresses, the hosts of ``server.listen`` and ``server.advertise``,
    those of ``server.allowed_hosts``, and any IP address if the node listens on all."""

    def __init__(self, server: ServerConfig) -> None:
        listen, _ = server.listen_address
        self._names = {"localhost", _canonical(listen), *map(_canonical, server.allowed_hosts)}
        if server.advertise is not None:
            self._names.add(_canonical(split_address("server.advertise", server.advertise)[0]))
        # A page that was addressed without a name cannot have a rebound one.
        self._any_address = listen in _WILDCARDS

    def include(self, host: bytes) -> bool:
        """Whether the value of a Host header names this node; ports are not compared."""
        name = _canonical(host_name(host))
        if name in self._names:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._any_address


def are_all_known(server: ServerConfig, *, requires_tokens: bool) -> bool:
    """Whether clients use no other names than `HostNames`: who listens for other machines without
    writing down `allowed_hosts` has those of load balancers and containers, too. Where a token is
    required it does not matter, because a page with a rebound name has none."""
    is_local = not requires_tokens and is_loopback(server.listen_address[0])
    return is_local or bool(server.allowed_hosts)


def host_name(host: bytes) -> str:
    """The name or address in ``host:port``, without the brackets of IPv6."""
    text = host.decode("latin-1")
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


def is_same_origin(origin: bytes, scheme: bytes, host: bytes) -> bool:
    """Whether a page of `origin` came from `host`. What is plain HTTP here may be TLS at a proxy in
    front; the reverse would let anyone on the network inject a page."""
    schemes = (b"https",) if scheme == b"https" else (b"http", b"https")
    return origin.lower() in [b"%b://%b" % (one, host.lower()) for one in schemes]


def _canonical(name: str) -> str:
    """A host's name or address in the one spelling that is compared."""
    name = name.lower().removesuffix(".")
    try:
        return str(ip_address(name))
    except ValueError:
        return name
