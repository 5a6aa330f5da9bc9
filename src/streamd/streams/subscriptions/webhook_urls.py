"""Which URLs and addresses a webhook may have (protocol section 12.8).

A server that posts to where strangers say can be made to reach what only it can reach. So a URL has
one spelling that all readers of it understand alike, and addresses are judged twice: as written in
the URL, and as the name is resolved for each delivery, which then connects to that very address.
What is not known to be public is not allowed: networks that are added later must not be open first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

import msgspec

MAX_URL_BYTES = 2_048

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>/[!$-;=@-\[\]_a-z~]*(?:\?[!$-;=?@-\[\]_a-z~/]*)?)?"
)
_NAME = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z][a-z0-9-]*")
_DOTTED = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})(?:\.|\Z)){4}(?<!\.)")
_PRIVATE_PORTS = 1024
_WEB_PORTS = (80, 443)
# Ports of other services above the privileged ones, which browsers do not connect to either (Fetch
# standard, "port blocking").
_BAD_PORTS = frozenset(
    (1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, *range(6665, 6670), 6679,
     6697, 10080)
)  # fmt: skip

# All but these is public in IPv4 (IANA special-purpose registry; RFC 6890). The last one is public,
# too, but on machines of one cloud it is the address of their metadata.
_NOT_PUBLIC_4 = tuple(
    IPv4Network(one)
    for one in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",
    )
)  # fmt: skip
# Only this is public in IPv6, and of it not these. IPv4-mapped addresses, NAT64 and local ones are
# outside; 6to4 (2002::/16) and Teredo (in 2001::/23) have IPv4 addresses inside.
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    IPv6Network(one) for one in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
_LOOPBACKS = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))

Address = IPv4Address | IPv6Address
Net = IPv4Network | IPv6Network


class WebhookUrlRejected(ValueError):
    """A URL or an address that no webhook may have; the message says why."""


class WebhookUrl(msgspec.Struct, frozen=True):
    """A URL in its parts. `host` is a name in lower case, or an address without brackets;
    `is_local` is http to this machine, which development permits."""

    host: str
    port: int
    target: str
    is_local: bool

    @property
    def address(self) -> Address | None:
        """The address that the URL itself names, if it names one."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default = self.port == (80 if self.is_local else 443)
        return host if is_default else f"{host}:{self.port}"

    def at(self, address: Address) -> str:
        """The URL with an address in the place of the host."""
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{'http' if self.is_local else 'https'}://{host}:{self.port}{self.target}"


def parse_webhook_url(
    text: str, *, allow_local_http: bool, allowed_networks: Sequence[Net] = ()
) -> WebhookUrl:
    """The parts of a URL that a webhook may have, as far as that shows before its name is resolved.

    With `allow_local_http` http to ``localhost`` and 127.0.0.0/8 is permitted, too. Raises
    `WebhookUrlRejected`.
    """
    match = _URL.fullmatch(text) if len(text) <= MAX_URL_BYTES else None
    if match is None:
        raise WebhookUrlRejected(
            f"it is not a URL of at most {MAX_URL_BYTES} ASCII characters: https://HOST/PATH, "
            "without a user and a fragment"
        )
    is_http = match["scheme"] == "http"
    host = match["host"].strip("[]").lower()
    port = int(match["port"] or (80 if is_http else 443))
    if not 0 < port < 65_536:
        raise WebhookUrlRejected(f"{port} is not a port")
    if (port < _PRIVATE_PORTS and port not in _WEB_PORTS) or port in _BAD_PORTS:
        raise WebhookUrlRejected(f"port {port} belongs to another service")
    url = WebhookUrl(host, port, match["target"] or "/", is_http)
    _check_host(url, is_bracketed=match["host"].startswith("["))
    if is_http and not (allow_local_http and _is_this_machine(url)):
        raise WebhookUrlRejected("it must begin with https://")
    if url.address is not None:
        check_address(url.address, url, allowed_networks)
    return url


def _check_host(url: WebhookUrl, *, is_bracketed: bool) -> None:
    """Raises `WebhookUrlRejected` for an address in one of the forms that some take for an address
    and some for a name (one number, octal, hexadecimal), and for what is neither."""
    if is_bracketed or _DOTTED.fullmatch(url.host) is not None:
        is_host = url.address is not None
    else:
        is_host = _NAME.fullmatch(url.host) is not None
    if not is_host:
        raise WebhookUrlRejected("its host is neither a name nor an address")
    is_local_name = url.host == "localhost" or url.host.endswith(".localhost")
    if is_local_name and not url.is_local:
        raise WebhookUrlRejected("its host is this machine")


def _is_this_machine(url: WebhookUrl) -> bool:
    address = url.address
    if address is None:
        return url.host == "localhost"
    return isinstance(address, IPv4Address) and address in _LOOPBACKS[0]


def check_address(address: Address, url: WebhookUrl, allowed_networks: Sequence[Net] = ()) -> None:
    """Raises `WebhookUrlRejected` for an address to which a webhook must not connect: one that is
    not public, unless it is in one of `allowed_networks`; of a local URL one of other machines."""
    if url.is_local:
        if not any(address in network for network in _LOOPBACKS):
            raise WebhookUrlRejected(f"{address} is not this machine")
    elif not (is_public(address) or any(address in one for one in allowed_networks)):
        raise WebhookUrlRejected(f"{address} is not a public address")


def is_public(address: Address) -> bool:
    """Whether an address is known to belong to the public internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return (
        address.scope_id is None
        and address in _PUBLIC_6
        and not any(address in network for network in _NOT_PUBLIC_6)
    )


def host_of(url: str) -> str:
    """The host in a URL that was accepted, as a name for where its webhooks go."""
    match = _URL.fullmatch(url)
    return "" if match is None else match["host"].lower()


def parse_network(text: str) -> Net:
    """A network as ``10.1.0.0/16``. Raises `ValueError`."""
    return ip_network(text)
