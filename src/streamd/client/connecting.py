"""What both drivers tell httpx: headers, TLS and limits; and what its failures mean to a flow."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx

from streamd import __version__
from streamd.client.core.retrying import unexpected
from streamd.client.core.steps import Body, Lost, Send
from streamd.client.errors import StreamdError, Unsendable, refusal
from streamd.process.redaction import shown
from streamd.protocol.headers import ACCEPT_ENCODING, CONTENT_ENCODING

# The limit of an answer that is received as a whole: above the largest piece of a read.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_CONNECT_S = 10.0
_MAX_CONNECTIONS = 1000
_SHOWN_CHARACTERS = 200
# Tokens of a wake, which its requests bring themselves.
_SECRETS = ("Authorization", "Write-Token")
_CODINGS = ("identity", "gzip", "deflate")
_HEADER_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")

Verify: TypeAlias = bool | str | ssl.SSLContext
Cert: TypeAlias = str | tuple[str, str]


def settings(
    urls: Sequence[str], timeout_s: float, verify: Verify, cert: Cert | None
) -> dict[str, Any]:
    """The arguments of httpx's clients."""
    return {
        "verify": _tls_context(urls, verify, cert),
        "timeout": httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S)),
        "headers": {"User-Agent": f"streamd/{__version__}", ACCEPT_ENCODING: "identity"},
        "limits": httpx.Limits(max_connections=_MAX_CONNECTIONS),
    }


def _tls_context(urls: Sequence[str], verify: Verify, cert: Cert | None) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    if verify is True and cert is None and not any(url.startswith("https:") for url in urls):
        # Loading the system's CAs takes longer than most requests. Without them a redirect to
        # https fails.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert is not None:
        certificate, key = (cert, None) if isinstance(cert, str) else cert
        # Without a password OpenSSL would ask a terminal for one.
        context.load_cert_chain(certificate, key, password="")
    return context


def url_list(urls: str | Sequence[str]) -> list[str]:
    """Parse one URL, several separated by commas, or a sequence. Raises `ValueError`."""
    found = urls.split(",") if isinstance(urls, str) else list(urls)
    for url in found:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"the URL '{shown(url)}' does not begin with http:// or https://")
        if not parsed(url).host:
            raise ValueError(f"{shown(url)} names no host")
        try:
            _ = urlsplit(url).port
        except ValueError as error:
            raise ValueError(f"{shown(url)} is not a URL: {error}") from None
    return found


@lru_cache(maxsize=1024)
def parsed(url: str) -> httpx.URL:
    """The URL as httpx knows it: parsing takes as long as the rest of building a request.

    Raises `Unsendable`.
    """
    try:
        found = httpx.URL(url)
        # Reading the host decodes it, and so does connecting; both fail for some that parse.
        found.host.encode("idna")
        return found
    except (httpx.InvalidURL, UnicodeError) as error:
        raise Unsendable(f"{shown(url[:_SHOWN_CHARACTERS])} is not a URL: {error}") from None


def request_headers(send: Send, credentials: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request. Raises `Unsendable`; httpx would show a secret."""
    own = send.request.headers or {}
    if not send.trusted:
        headers = {name: value for name, value in own.items() if name not in _SECRETS}
    elif "Authorization" in own:
        given = {name: value for name, value in credentials.items() if name.title() not in own}
        headers = given | dict(own)
    else:
        headers = dict(credentials) | dict(own)
    for name, value in headers.items():
        if not _HEADER_VALUE.fullmatch(value):
            raise Unsendable(
                f"the header {name} cannot hold its value, which has a line end, or a space at an"
                " end, or is not ASCII"
            )
    if isinstance(send.request.body, bytes):
        headers["Content-Length"] = str(len(send.request.body))
    return headers


def pieces(body: Body) -> Iterator[bytes]:
    """A body in pieces.

    A request of httpx is part of a reference cycle and keeps a body of bytes: a large append would
    hold a hundred bodies until the garbage collector runs.
    """
    return iter((body,)) if isinstance(body, bytes) else body()


def timeout(general: httpx.Timeout, send: Send) -> httpx.Timeout:
    """The limits of a request, by those of all requests."""
    if send.timeout_s is None:
        return general
    return httpx.Timeout(
        **{
            name: send.timeout_s if limit is None else min(limit, send.timeout_s)
            for name, limit in general.as_dict().items()
        }
    )


def lost(failure: httpx.HTTPError, *, answered: bool = False) -> Lost:
    """What a failure of httpx means. Raises `Unsendable` if each try would fail so."""
    if isinstance(failure, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
        raise Unsendable(str(failure)) from failure
    unsent = httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
    sent = answered or not isinstance(failure, unsent)
    if isinstance(failure, httpx.ReadTimeout):
        return Lost("no answer in time", sent=True, answered=answered)
    return Lost(str(failure) or type(failure).__name__, sent=sent, answered=answered)


def misdirected(error: UnicodeError) -> Unsendable:
    """The error for a redirect to a host whose name cannot be decoded: httpx reads it, to prepare
    the next request, before it returns the answer."""
    return Unsendable(f"the answer redirects to what is not a URL: {error}")


def check_encoding(answer: httpx.Response) -> None:
    """Raise `StreamdError` if the answer is compressed so that a piece could decode to any size.

    The client asks for none, and some proxies compress nevertheless: zlib's codings, alone, turn a
    piece into about a thousand, which the limits allow for. A coding of codings, and others that
    httpx may know, have no such bound.
    """
    coding = answer.headers.get(CONTENT_ENCODING, "identity").lower()
    if coding not in _CODINGS:
        raise unexpected(answer.status_code, f"its Content-Encoding is {shown(coding)!r}")


def too_large(status: int) -> StreamdError:
    """The error for an answer that exceeds the limit."""
    return refusal(status, "TOO_LARGE", f"the answer exceeds {MAX_ANSWER_BYTES} bytes", {})
