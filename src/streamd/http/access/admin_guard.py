"""Keeps web pages away from the administration of a node.

A browser sends the requests of any page to any address that it reaches, and there is no credential
that a page would lack. Four checks tell an operator's request from a page's:

- Host names this node; for the metrics it may be any name where that is so for streams. If a page's
  name was rebound to the node's address (DNS rebinding), the browser takes the page for one of the
  node's own, but the page still sends its own name as Host.
- Origin, which browsers add, is the node's own or absent.
- Sec-Fetch-Site, which they add where they leave Origin out, names no other site: even a link in a
  page would start the profiler.
- A POST is JSON. Pages of other origins may send forms and plain text without permission; before
  JSON the browser asks for permission, and gets none.
"""

from __future__ import annotations

from streamd.config.settings import ServerConfig
from streamd.http.access.host_names import HostNames, are_all_known, is_same_origin
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.refusals import error_response
from streamd.protocol.headers import CONTENT_TYPE
from streamd.protocol.problems import Problem

# Scrapers know the node by names of their own, as clients of streams do.
_METRICS_PATH = b"/metrics"
_OTHER_SITES = (b"cross-site", b"same-site")


class AdminGuard:
    """Decides which requests for a node's administration are answered."""

    def __init__(self, server: ServerConfig, *, requires_tokens: bool) -> None:
        self._names = HostNames(server)
        self._names_scrapers = are_all_known(server, requires_tokens=requires_tokens)

    def refusal(self, request: Request, *, takes_post: bool) -> Response | None:
        """The answer to a request that is refused; None if it may be answered. `takes_post` says
        whether its path has a POST."""
        host = request.headers.get(b"host", b"")
        checks_host = self._names_scrapers or request.path != _METRICS_PATH
        if checks_host and not self._names.include(host):
            return error_response(Problem.HOST_NOT_ALLOWED)
        origin = request.headers.get(b"origin")
        is_foreign = origin is not None and not is_same_origin(origin, request.scheme, host)
        if is_foreign or request.headers.get(b"sec-fetch-site") in _OTHER_SITES:
            return error_response(
                Problem.ORIGIN_NOT_ALLOWED, "pages of other origins may not administer a node"
            )
        # Browsers ask for permission before any other method that changes something.
        is_json = _is_json(request.headers.get(CONTENT_TYPE.key, b""))
        if request.method == "POST" and takes_post and not is_json:
            return error_response(Problem.UNSUPPORTED_MEDIA_TYPE)
        return None


def _is_json(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"application/json"
