"""What a stranger can hold without a credential: each listener keeps room for its own.

One table over the listeners, and over what costs a stranger nothing: connections that are silent,
that send half a head, that never shake hands, that speak HTTP/2 and ask for nothing. They come from
more addresses than share the places. The peers' port is in `transport/test_handshake.py`.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import trio
from msgspec.structs import replace

from streamd.http.door.front_door import FrontDoor
from tests.http.pki import make_pki
from tests.http.serving import PATIENCE_S, serving, until
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SENDS = {
    "silence": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: ",
    "half a TLS hello": b"\x16\x03\x01\x02\x00\x01",
    "half a preface": PREFACE[:20],
    "HTTP/2 without a request": PREFACE,
}
LISTENERS: dict[str, dict[str, str]] = {
    "front door": {},
    "workers": {"SERVER_WORKERS": "2"},
    "front door with TLS": {"TLS": "1"},
    "hypercorn": {"SERVER_HTTP": "hypercorn"},
    "hypercorn with TLS": {"SERVER_HTTP": "hypercorn", "TLS": "1"},
    "operators": {"ADMIN": "1"},
    "operators with TLS": {"ADMIN": "1", "TLS": "1"},
}
QUICK = ("front door", "operators")


@pytest.mark.parametrize("sends", SENDS)
@pytest.mark.parametrize(
    "listener",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in LISTENERS],
)
def test_silent_connections_keep_nobody_out(listener: str, sends: str, tmp_path: Path) -> None:
    settings = dict(LISTENERS[listener])
    verify: ssl.SSLContext | bool = True
    environment = {"STREAMD_SERVER_MAX_CONNECTIONS": "24"}
    has_tls, has_admin = settings.pop("TLS", ""), settings.pop("ADMIN", "")
    if has_tls:
        pki = make_pki(tmp_path)
        settings |= {"SERVER_TLS_CERT": str(pki.certificate), "SERVER_TLS_KEY": str(pki.key)}
        verify = pki.client
    admin_port = unused_port()
    if has_admin:
        settings["ADMIN_LISTEN"] = f"127.0.0.1:{admin_port}"
    environment |= {f"STREAMD_{name}": value for name, value in settings.items()}
    with ServerProcess(tmp_path / "data", environment=environment) as server, ExitStack() as stack:
        port = admin_port if has_admin else server.port
        for number in range(160):
            one = socket.create_connection(
                ("127.0.0.1", port), 10, (f"127.0.0.{2 + number % 8}", 0)
            )
            stack.enter_context(one).sendall(SENDS[sends])
        scheme = "https" if has_tls else "http"
        http2 = "hypercorn" in listener and bool(has_tls)
        with httpx.Client(verify=verify, http2=http2, timeout=10) as client:
            for _ in range(3):
                answer = client.get(f"{scheme}://127.0.0.1:{port}/healthz")
                assert answer.status_code == 200


def test_operators_are_answered_where_strangers_asked_for_health_and_fell_silent(
    tmp_path: Path,
) -> None:
    port = unused_port()
    environment = {"STREAMD_ADMIN_LISTEN": f"127.0.0.1:{port}"}
    with ServerProcess(tmp_path / "data", environment=environment), ExitStack() as stack:
        for number in range(160):
            one = socket.create_connection(
                ("127.0.0.1", port), 10, (f"127.0.0.{2 + number % 8}", 0)
            )
            stack.enter_context(one).sendall(HEALTH)
            assert one.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 200


class Abroad(socket.socket):
    """A listener that gives the address of each connection as one of `addresses`."""

    addresses: Iterator[str]

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        sock, (_, port) = super().accept()
        return sock, (next(self.addresses), port)


def is_answered(one: socket.socket) -> bool:
    """Whether the server has sent something, or closed."""
    return bool(select.select([one], [], [], 0)[0])


HERE = {"IPv4": "127.0.0.1", "IPv6": "::1"}


@pytest.mark.parametrize("here", HERE.values(), ids=HERE)
async def test_places_are_kept_for_this_machine(here: str, tmp_path: Path) -> None:
    """Where others have a request under way in every place that they may have, and none ends."""
    request = b"GET /v1/stream/s?offset=now&live=long-poll HTTP/1.1\r\nHost: x\r\n\r\n"
    foreign = [
        f"203.0.113.{number}" if number % 2 else f"2001:db8:{number}::" for number in range(6)
    ]
    with Abroad() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        listener.addresses = iter([*foreign, "198.51.100.1", here, here, here])
        address = listener.getsockname()
        async with serving(tmp_path) as server, trio.open_nursery() as nursery:
            async with server.client() as client:
                await client.put("/v1/stream/s", headers={"Content-Type": "text/plain"})
            config = replace(server.door.config, max_connections=8, max_connections_per_address=8)
            door = FrontDoor(
                server.door.shared.application, config, server.node.metrics,
                kept_for_loopback=2, ends_idle=True,
            )  # fmt: skip
            nursery.start_soon(door.serve, [listener])
            with ExitStack() as stack:
                refused: list[int] = []
                waiting = server.hub.reading_now
                for number in range(10):
                    one = stack.enter_context(socket.create_connection(address, PATIENCE_S))
                    one.sendall(request)
                    served = number + 1 - len(refused)
                    await until(
                        lambda one=one, served=served: (
                            waiting["long-poll"] == served or is_answered(one)
                        )
                    )
                    refused += [number] if is_answered(one) else []
                assert refused == [6, 9]
            nursery.cancel_scope.cancel()
