"""TCP between nodes, in the clear or with mutual TLS."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import trio

_RECEIVE_BYTES = 64 * 1024
_ADDRESS = re.compile(r"(?:\[(?P<bare>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:]+)):(?P<port>[0-9]{1,5})")


class TlsContexts(NamedTuple):
    """The two sides of mutual TLS."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def ssl_contexts(cert: Path, key: Path, ca: Path) -> TlsContexts:
    """Contexts for one node: `cert` (PEM, with its chain) and `key` are its own, for both sides.

    Every peer must show a certificate that `ca` has issued; a dialled peer also one for the host or
    IP address that was dialled. Raises `OSError` (or its `ssl.SSLError`) for unusable files.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Without a password OpenSSL would ask a terminal for one, and the node would wait.
        context.load_cert_chain(cert, key, password="")
        context.load_verify_locations(ca)
    return TlsContexts(server, client)


class PlainStream(trio.abc.Stream):
    """TCP in the clear. One task may read while another writes.

    A `trio.SocketStream` tries the system call first, guards against a second caller and passes a
    checkpoint of its own: twice the work of a read, which a peer's next message almost always has
    to wait for.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket

    def send_now(self, data: bytes) -> int:
        try:
            return os.write(self.socket.fileno(), data)
        except OSError:
            return 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Raises as any stream of Trio. Waits before it reads, even if bytes are there."""
        while True:
            if self.fileno() < 0:
                raise trio.ClosedResourceError("this socket was already closed")
            await trio.lowlevel.wait_readable(self.fileno())
            data = self.receive_now(max_bytes or _RECEIVE_BYTES)
            if data is not None:
                return data

    def fileno(self) -> int:
        return self.socket.fileno()

    def receive_now(self, max_bytes: int) -> bytes | None:
        try:
            return os.read(self.fileno(), max_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def aclose(self) -> None:
        await self._stream.aclose()


class PlainListener(trio.abc.Listener[PlainStream]):
    """Accepts connections in the clear."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener

    async def accept(self) -> PlainStream:
        return PlainStream(await self._listener.accept())

    async def aclose(self) -> None:
        await self._listener.aclose()


class TlsListener(trio.abc.Listener[trio.SSLStream[trio.SocketStream]]):
    """Accepts connections for the server's side of `tls`, with the contexts loaded at that time."""

    def __init__(self, listener: trio.SocketListener, tls: Callable[[], TlsContexts]) -> None:
        self._listener = listener
        self._tls = tls

    async def accept(self) -> trio.SSLStream[trio.SocketStream]:
        plain = await self._listener.accept()
        return trio.SSLStream(plain, self._tls().server, server_side=True)

    async def aclose(self) -> None:
        await self._listener.aclose()


class TcpNetwork:
    """Listens on one ``host:port`` (port 0: any) and dials others. With `tls` each handshake uses
    the contexts that it returns then."""

    def __init__(self, listen: str, tls: Callable[[], TlsContexts] | None = None) -> None:
        self._listen = listen
        self._tls = tls
        self.bound: list[str] = []

    @property
    def address(self) -> str:
        """The ``host:port`` on which it listens, once it does."""
        return self.bound[0]

    async def listen(self) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        host, port = split_address(self._listen)
        plain = await trio.open_tcp_listeners(port, host=host)
        self.bound = [_name(listener) for listener in plain]
        if self._tls is None:
            return [PlainListener(listener) for listener in plain]
        return [TlsListener(listener, self._tls) for listener in plain]

    async def hosts_of(self, address: str) -> frozenset[str]:
        try:
            host, port = split_address(address)
            found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return frozenset()
        return frozenset(str(one[4][0]) for one in found)

    async def connect(self, address: str) -> trio.abc.Stream:
        """Open a connection, wrapped in TLS if configured. Raises `OSError`."""
        host, port = split_address(address)
        try:
            plain = await trio.open_tcp_stream(host, port)
        except UnicodeError as error:
            raise OSError(f"{host!r} is not a host name") from error
        if self._tls is None:
            return PlainStream(plain)
        try:
            return trio.SSLStream(plain, self._tls().client, server_hostname=host)
        except ValueError as error:
            await trio.aclose_forcefully(plain)
            raise OSError(f"{host!r} is not a host name that TLS can check") from error


def remote_host(stream: trio.abc.Stream) -> str | None:
    """The IP address at the other end of a connection; None if it has none, or has ended."""
    if isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    if not isinstance(stream, trio.SocketStream | PlainStream):
        return None
    try:
        name = stream.socket.getpeername()
    except OSError:
        return None
    return str(name[0])


def numeric_hosts(address: str) -> frozenset[str]:
    """The IP address in an address; none if it names a host, or is malformed."""
    try:
        host, _ = split_address(address)
        ip_address(host)
    except (OSError, ValueError):
        return frozenset()
    return frozenset((host,))


async def leads_to(address: str, host: str) -> bool:
    """Whether the host of an address is `host`, an IP address, or a name of it."""
    try:
        name, port = split_address(address)
        if name == host:
            return True
        found = await trio.socket.getaddrinfo(name, port, type=trio.socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(one[4][0] == host for one in found)


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[IPv6]:port``. Raises `OSError`: an address that a peer has passed on is
    no more certain to be well-formed than to be reachable."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise OSError(f"{address!r} is not host:port")
    return match["bare"] or match["host"], int(match["port"])


def _name(listener: trio.SocketListener) -> str:
    host, port, *_ = listener.socket.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
