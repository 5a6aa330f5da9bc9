"""Sockets that listen for clients."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import structlog
import trio

from streamd.auth.certificates import Certificate
from streamd.config.settings import ConfigError, ServerConfig
from streamd.http.credentials.tls_files import TlsFiles
from streamd.http.protocol.messages import COMMON_HEAD
from streamd.http.protocol.refusals import error_response
from streamd.http.protocol.wire import STATUS_LINES, body_parts
from streamd.process.addresses import client_of
from streamd.process.cures import with_cure
from streamd.protocol.problems import Problem

_BACKLOG = 4096
# With one accept per turn, new clients would starve while a thousand busy ones make turns long;
# with all of them at once, the busy ones would wait.
ACCEPTS_PER_TURN = 64
_ACCEPT_BACKOFF_S = 0.1
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = structlog.get_logger("streamd.http")


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening, non-blocking sockets for every address of `host`. Raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners = _bind([(family, address) for family, _, _, _, address in found])
    try:
        start_listening(listeners)
    except OSError:
        _close(listeners)
        raise
    return listeners


def hold_ports(host: str, port: int) -> list[socket.socket]:
    """As `listen`, but the sockets only keep the ports for those that `share_ports` with them."""
    # To share a port is to share it with everyone of this user: first see that it is free.
    free = listen(host, port)
    addresses = [(one.family, one.getsockname()) for one in free]
    _close(free)
    return _bind(addresses, shared=True)


def share_ports(held: Sequence[socket.socket]) -> list[socket.socket]:
    """Sockets bound to the same addresses, which do not listen yet. Raises `OSError`."""
    return _bind([(holder.family, holder.getsockname()) for holder in held], shared=True)


def start_listening(listeners: Sequence[socket.socket]) -> None:
    """Listen, without blocking. Raises `OSError`."""
    for listener in listeners:
        listener.listen(_BACKLOG)
        listener.setblocking(False)


def _bind(
    addresses: Sequence[tuple[socket.AddressFamily | int, Any]], *, shared: bool = False
) -> list[socket.socket]:
    bound: list[socket.socket] = []
    try:
        for family, address in addresses:
            one = socket.socket(family, socket.SOCK_STREAM)
            bound.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
    except OSError:
        _close(bound)
        raise
    return bound


def _close(sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        one.close()


async def accept_for_ever(
    listener: socket.socket, take: Callable[[socket.socket, str], None]
) -> NoReturn:
    """Pass each accepted socket, non-blocking, to `take` with its client (`client_of`): at most
    `ACCEPTS_PER_TURN` in a turn of the loop."""
    while True:
        await trio.lowlevel.wait_readable(listener)
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    log.warning("accept failed", error=error.strerror)
                    await trio.sleep(_ACCEPT_BACKOFF_S)
                break  # The client left before it was accepted.
            sock.setblocking(False)
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            take(sock, client_of(address[0]))


def server_tls(server: ServerConfig) -> TlsFiles[ssl.SSLContext] | None:
    """The configured TLS, or None. Raises `ConfigError`."""
    if server.tls_cert is None or server.tls_key is None:
        return None
    files = [server.tls_cert, server.tls_key]
    if server.tls_client_ca is not None:
        files.append(server.tls_client_ca)
    try:
        return TlsFiles(files, partial(_ssl_context, server))
    except OSError as error:
        raise ConfigError(f"server.tls_cert, tls_key, tls_client_ca: {with_cure(error)}") from None


def _ssl_context(server: ServerConfig) -> ssl.SSLContext:
    """Raises `ConfigError`."""
    assert server.tls_cert is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if server.http == "hypercorn":
        context.set_alpn_protocols(["h2", "http/1.1"])
        # HTTP/2 forbids others with TLS 1.2 (RFC 9113 appendix A).
        context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    else:
        context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password OpenSSL would ask a terminal for one, and everyone would wait.
        context.load_cert_chain(server.tls_cert, server.tls_key, password="")
    except OSError as error:
        raise ConfigError(f"server.tls_cert, server.tls_key: {with_cure(error)}") from None
    if server.tls_client_ca is not None:
        _ask_for_certificates(context, server.tls_client_ca, server.tls_client_auth)
    return context


def _ask_for_certificates(context: ssl.SSLContext, authorities: str, mode: str) -> None:
    """Ask clients for certificates of these authorities alone, for clients. A wrong one ends the
    handshake also where none is needed. Raises `ConfigError`."""
    import streamd.http.credentials.client_certificates  # noqa: F401 - now, not while a client waits

    context.verify_mode = ssl.CERT_REQUIRED if mode == "required" else ssl.CERT_OPTIONAL
    # An authority is trusted without the one above it, as Python does by itself from 3.13 on.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cafile=authorities)
    except OSError as error:
        raise ConfigError(f"server.tls_client_ca: {authorities}: {with_cure(error)}") from None


def client_certificate(stream: trio.SSLStream[Any]) -> Certificate | None:
    """The verified certificate of the client, after the handshake, if it has sent one."""
    der = stream.getpeercert(binary_form=True)
    if der is None:
        return None
    # Only here: cryptography takes long to import.
    from streamd.http.credentials.client_certificates import parse_certificate

    certificate = parse_certificate(der)
    if certificate is None:
        log.warning("client certificate is malformed or has too many names")
    return certificate


def _too_many() -> bytes:
    refusal = error_response(Problem.TOO_MANY_CONNECTIONS, "too many connections; try again later")
    parts, size = body_parts(refusal.body)
    end = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % size
    return b"".join((STATUS_LINES[503], refusal.head, COMMON_HEAD, end, *parts))


_TOO_MANY = _too_many()


def turn_away(sock: socket.socket) -> None:
    """Refuse a connection beyond a limit of connections, without waiting for anything."""
    with suppress(OSError):
        sock.send(_TOO_MANY)
    sock.close()
