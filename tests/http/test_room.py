"""What a stranger can hold without a credential: each listener keeps room for its own.

One table over the listeners, and over what costs a stranger nothing: connections that are silent,
that send half a head, that never shake hands, that speak HTTP/2 and ask for nothing. They come from
more addresses than share the places. The peers' port is in `transport/test_handshake.py`.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.http.pki import make_pki
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SENDS = {
    "silence": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: ",
    "half a TLS hello": b"\x16\x03\x01\x02\x00\x01",
    "half a preface": PREFACE[:20],
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


@pytest.mark.parametrize("sends", SENDS)
@pytest.mark.parametrize("listener", LISTENERS)
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
