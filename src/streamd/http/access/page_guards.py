"""Keeps web pages of other origins away, where there is no credential that a page would lack.

A browser sends the requests of any page to any address that it reaches, on this machine or in this
network: also to the administration of a node, and to streams where nobody needs a token. `Host`
betrays a page whose name was rebound to the node's address (DNS rebinding): the browser takes it
for one of the node's own, but the page still sends its own name. `Origin`, which browsers add,
betrays all others but one kind: for a script or an image browsers send no Origin, but
`Sec-Fetch-Site` (docs/decisions/024-pages-need-permission.md).
"""

from __future__ import annotations

import re
from ipaddress import ip_address

from streamd.config.settings import ServerConfig, split_address
from streamd.http.protocol.fields import Headers
from streamd.http.protocol.messages import Request
from streamd.process.addresses import is_loopback
from streamd.protocol.headers import CONTENT_TYPE
from streamd.protocol.problems import Problem

# Of the Host and Origin headers that were judged well.
_MAX_REMEMBERED = 256
_ORIGIN = re.compile(rb"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_NO_PART = (
    "pages of other sites may not include streams as scripts, images or the like; a page that "
    "server.allowed_origins lists may do so with the attribute crossorigin"
)
# Scrapers know the node by names of their own, as clients of streams do.
_METRICS_PATH = b"/metrics"
_OTHER_SITES = (b"cross-site", b"same-site")
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  # compared with, not bound


def is_part_of_another_page(headers: Headers) -> bool:
    """Whether a browser says that a page of another site includes what it requests, rather than
    that somebody follows a link.

    A stream of JavaScript as a `<script>` would give its records to any page.
    """
    site = headers.get(b"sec-fetch-site")
    return site == b"cross-site" and headers.get(b"sec-fetch-mode") != b"navigate"


class StreamGuard:
    """Decides from which pages requests for streams and buckets are answered.

    Any Host will do where a token is required or other machines reach the node, unless
    `allowed_hosts` is written down; any Origin where a token is required or `allowed_origins` has
    ``*``. Without `allowed_origins`, pages of this machine and of the node itself are answered.

    A token is something that a page lacks, a client certificate is not: browsers send it for any
    page. With nothing but a certificate a request is judged as where no token is required.
    """

    def __init__(self, server: ServerConfig, *, requires_tokens: bool) -> None:
        origins = server.allowed_origins or (["*"] if requires_tokens else [])
        self._checks_host = are_all_known(server, requires_tokens=requires_tokens)
        self._judges_origin = "*" not in origins
        # Answers must not come from a cache that has them for another page.
        self.checks_origin = self._judges_origin
        self._allows_local = not server.allowed_origins
        self._origins = {origin.lower().encode() for origin in origins}
        self._names = HostNames(server)
        self._good_hosts: set[bytes] = set()
        self._of_certificates: StreamGuard | None = None
        if requires_tokens and server.tls_client_ca is not None:
            self._of_certificates = StreamGuard(server, requires_tokens=False)
            self.checks_origin |= self._of_certificates.checks_origin

    def check(self, request: Request) -> None:
        """Raises `ProblemError` for a request of a page that has no permission.

        A request without a Host (HTTP/1.0), Origin and Sec-Fetch-Site comes from no page. OPTIONS
        is answered to all origins: it says nothing of streams, and the request that follows is
        judged itself.
        """
        headers = request.headers
        others, certificate = self._of_certificates, request.connection.certificate
        if others is not None and certificate is not None and b"authorization" not in headers:
            others.check(request)
            return
        host = headers.get(b"host", b"")
        if self._checks_host and host and host not in self._good_hosts:
            self._check_host(host)
        if self._judges_origin and request.method != "OPTIONS":
            origin = headers.get(b"origin")
            if origin is not None:
                self._check_origin(origin.lower(), request.scheme, host)
            elif is_part_of_another_page(headers):
                raise Problem.ORIGIN_NOT_ALLOWED.error(_NO_PART)

    def _check_host(self, host: bytes) -> None:
        if not self._names.include(host):
            raise Problem.HOST_NOT_ALLOWED.error()
        if len(self._good_hosts) >= _MAX_REMEMBERED:
            self._good_hosts.clear()
        self._good_hosts.add(host)

    def _check_origin(self, origin: bytes, scheme: bytes, host: bytes) -> None:
        if origin in self._origins:
            return
        # An unchecked Host may be a rebound name, and be the page's own for that reason.
        if self._names.include(host) and is_same_origin(origin, scheme, host):
            return
        match = _ORIGIN.fullmatch(origin) if self._allows_local else None
        if match is None or not is_loopback(host_name(match[1])):
            raise Problem.ORIGIN_NOT_ALLOWED.error()


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


class AdminGuard:
    """Decides which requests for a node's administration are answered, by four checks:

    - Host names this node; for the metrics it may be any name where that is so for streams, and so
      it may be for what clients of streams use, which `StreamGuard` judges.
    - Origin is the node's own or absent.
    - Sec-Fetch-Site names no other site: even a link in a page would start the profiler.
    - A POST is JSON. Pages of other origins may send forms and plain text without permission;
      before JSON the browser asks for permission, and gets none.
    """

    def __init__(self, server: ServerConfig, *, requires_tokens: bool) -> None:
        self._names = HostNames(server)
        self._names_scrapers = are_all_known(server, requires_tokens=requires_tokens)

    def check(self, request: Request, *, takes_post: bool, is_for_clients: bool) -> None:
        """Raises `ProblemError` for a request that is refused. `takes_post` says whether its path
        has a POST, `is_for_clients` whether clients of streams use it."""
        host = request.headers.get(b"host", b"")
        is_any_name = is_for_clients or (request.path == _METRICS_PATH and not self._names_scrapers)
        if not is_any_name and not self._names.include(host):
            raise Problem.HOST_NOT_ALLOWED.error()
        origin = request.headers.get(b"origin")
        is_foreign = origin is not None and not is_same_origin(origin, request.scheme, host)
        if is_foreign or request.headers.get(b"sec-fetch-site") in _OTHER_SITES:
            raise Problem.ORIGIN_NOT_ALLOWED.error(
                "pages of other origins may not administer a node or its subscriptions"
            )
        # Browsers ask for permission before any other method that changes something.
        is_json = _is_json(request.headers.get(CONTENT_TYPE.key, b""))
        if request.method == "POST" and takes_post and not is_json:
            raise Problem.UNSUPPORTED_MEDIA_TYPE.error()


def _is_json(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"application/json"
