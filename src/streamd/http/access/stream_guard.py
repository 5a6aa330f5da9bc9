"""Keeps web pages away from streams where nobody needs a token.

A page in a browser on this machine, or in this network, can send requests here, and where a token
is not required there is nothing that it lacks. `Host` betrays a page whose name was rebound to the
node's address, and `Origin`, which browsers add, betrays all others but one kind: for a script or
an image browsers send no Origin, but `Sec-Fetch-Site`
(docs/decisions/024-pages-need-permission.md).
"""

from __future__ import annotations

import re

from streamd.config.checks import is_loopback
from streamd.config.settings import ServerConfig
from streamd.http.access.host_names import HostNames, are_all_known, host_name, is_same_origin
from streamd.http.protocol.fields import Headers
from streamd.http.protocol.messages import Request
from streamd.protocol.problems import Problem

# Of the Host and Origin headers that were judged well.
_MAX_REMEMBERED = 256
_ORIGIN = re.compile(rb"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_NO_PART = (
    "pages of other sites may not include streams as scripts, images or the like; a page that "
    "server.allowed_origins lists may do so with the attribute crossorigin"
)


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
