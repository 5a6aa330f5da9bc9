"""No stranger fills the log, on any port: no line is longer than its bound, none is forged, and an
event has few lines a second, whatever bytes are sent. No line has what a client of HTTP sent."""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import hpack
import pytest

from streamd.process import logs
from streamd.transport.hello import Hello, encode_hello
from streamd.transport.wire import FrameKind
from streamd.transport.wire import frame as peer_frame
from tests.http.pki import Pki, make_pki
from tests.http.test_http2_frames import END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

MARK = b"whisper"
TEXTS = [
    MARK * 500,
    MARK + bytes(range(1, 32)) + b"\x7f",
    MARK + b"\r\n2026-01-01T00:00:00Z [error    ] forged line\r\n\r\n",
    MARK + b"\x1b[2J\x1b]0;title\x07\x1b[31m\x9b31m",
    MARK + b"\xff\xfe\xc3\x28\xed\xa0\x80",
    MARK + "\u202e\u2066\u2028\u0085".encode(),
    MARK + b"%s%n{0}{event}%(name)s$(id)`id`${x}",
    MARK + b'"}\n{"event":"forged","level":"error"}',
    b"\0" * 100 + MARK,
]
ROUNDS = 4
# Events that a stranger can cause at one port.
MOST_EVENTS = 5


def http_1(text: bytes) -> Iterator[bytes]:
    end = b"\r\nHost: localhost\r\n\r\n"
    yield text
    yield b"GET /v1/stream/" + text + b" HTTP/1.1" + end
    yield text + b" / HTTP/1.1" + end
    yield b"GET /v1/stream/s HTTP/1.1\r\n" + text + b": x" + end
    yield b"GET /v1/stream/s HTTP/1.1\r\nAuthorization: Bearer " + text + end
    yield b"PUT /v1/stream/s HTTP/1.1\r\nContent-Type: " + text + end
    yield b"GET /v1/stream/s?offset=" + text + b" HTTP/1.1" + end
    yield b"GET / HTTP/1.1\r\nHost: " + text + b"\r\n\r\n"


def http_2(text: bytes) -> Iterator[bytes]:
    good = {b":method": b"GET", b":scheme": b"http", b":path": b"/", b":authority": b"x"}
    encoder, stream, sent = hpack.Encoder(), 1, PREFACE + frame(SETTINGS)
    for name in (*good, b"authorization", b"content-length", text):
        fields = [*{**good, name: text}.items()]
        block = encoder.encode(fields)
        sent += frame(HEADERS, block, flags=END_HEADERS | END_STREAM, stream=stream)
        stream += 2
    yield sent
    yield PREFACE + text
    yield PREFACE + frame(SETTINGS) + frame(HEADERS, text, flags=END_HEADERS, stream=1)


def peers(text: bytes) -> Iterator[bytes]:
    name = text.decode("utf-8", "replace")
    for nonce, first in ((b"", False), (b"n" * 32, False), (b"n" * 32, True)):
        for cluster in ("flooded", name[:3000]):
            hello = Hello(
                cluster_name=cluster,
                cluster_id=name[:30],
                node_id=9,
                peer_address=name[:300],
                client_address=name[:300],
                log_is_empty=True,
                nonce=nonce,
                proves_first=first,
            )
            sent = peer_frame(FrameKind.HELLO, encode_hello(hello))
            yield sent + peer_frame(FrameKind.PROOF, text[:32])
    yield text
    yield peer_frame(FrameKind.HELLO, text[:4000])


Sends = Callable[[bytes], Iterator[bytes]]
LISTENERS: dict[str, tuple[dict[str, str], list[Sends]]] = {
    "front door": ({}, [http_1, http_2]),
    "front door, tokens": ({"AUTH_MODE": "required"}, [http_1]),
    "front door, TLS": ({"TLS": "SERVER"}, [http_1]),
    "workers": ({"SERVER_WORKERS": "2"}, [http_1]),
    "hypercorn": ({"SERVER_HTTP": "hypercorn"}, [http_1, http_2]),
    "hypercorn, TLS": ({"SERVER_HTTP": "hypercorn", "TLS": "SERVER"}, [http_1, http_2]),
    "operators": ({"PORT": "ADMIN_LISTEN"}, [http_1]),
    "peers": ({"PORT": "CLUSTER_LISTEN"}, [peers, http_1]),
    "peers, secret": ({"PORT": "CLUSTER_LISTEN", "SECRET": "1"}, [peers]),
    "peers, TLS": ({"PORT": "CLUSTER_LISTEN", "TLS": "CLUSTER"}, [peers]),
}


def environment_of(
    settings: dict[str, str], pki: Pki, tmp_path: Path
) -> tuple[dict[str, str], int]:
    """The server's environment, and the port to flood, 0 for that of clients."""
    found, port = dict(settings), 0
    if (key := found.pop("PORT", "")) != "":
        port = unused_port()
        found[key] = f"127.0.0.1:{port}"
        if key == "CLUSTER_LISTEN":
            found["CLUSTER_NAME"] = "flooded"
    if section := found.pop("TLS", ""):
        found |= {f"{section}_TLS_CERT": str(pki.certificate), f"{section}_TLS_KEY": str(pki.key)}
        if section == "CLUSTER":
            pki.authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
            found["CLUSTER_TLS_CA"] = str(tmp_path / "ca.pem")
    if found.pop("SECRET", ""):
        (tmp_path / "secret").write_bytes(os.urandom(40))
        found["CLUSTER_SECRET_FILE"] = str(tmp_path / "secret")
    return {f"STREAMD_{name}": value for name, value in found.items()}, port


def send(port: int, data: bytes, tls: ssl.SSLContext | None) -> None:
    """Send bytes on a connection of their own, and wait for an answer or the end."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as plain:
        one = plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")
        one.sendall(data)
        one.settimeout(0.05)
        one.recv(65536)
        if tls is not None:
            one.close()


@pytest.mark.parametrize("rendering", ["json", "console"])
@pytest.mark.parametrize("listener", LISTENERS)
def test_a_flood_leaves_few_short_lines(listener: str, rendering: str, tmp_path: Path) -> None:
    settings, kinds = LISTENERS[listener]
    pki = make_pki(tmp_path)
    environment, port = environment_of(settings, pki, tmp_path)
    flags = ["--log-format", rendering]
    with ServerProcess(tmp_path / "data", flags=flags, environment=environment) as server:
        before, began = len(server.output.splitlines()), time.monotonic()
        tls = pki.client if settings.get("TLS") == "SERVER" else None
        if tls is not None and settings.get("SERVER_HTTP") == "hypercorn":
            tls.set_alpn_protocols(["h2"])
        for kind in kinds:
            for text in TEXTS * ROUNDS:
                for data in kind(text):
                    send(port or server.port, data, tls)
        lasted_s = time.monotonic() - began
        assert server.stop() == 0
    lines = server.output.split("\n")[before:-1]
    assert all(line.isprintable() for line in lines)
    assert max(len(line.encode()) for line in lines) <= logs.MAX_LINE_BYTES
    assert len(lines) <= MOST_EVENTS * (logs.BURST + logs.PER_S * lasted_s)
    assert not re.search(r"^(2026-01-01|\{\"event\": ?\"forged)", "\n".join(lines), re.MULTILINE)
    if kinds[0] is not peers or "CLUSTER_SECRET_FILE" in str(environment):
        assert MARK.decode() not in "\n".join(lines)
