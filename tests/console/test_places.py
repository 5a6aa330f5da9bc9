"""The console below a path of a proxy, and at the listener of operators, in Chromium."""

from __future__ import annotations

import http.client
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate

from streamd.client import Client
from tests.console.consoles import WITH_ROOT, Console
from tests.examples.browsing import pages
from tests.http.authorized import ROOT
from tests.http.pki import make_pki
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

PREFIX = "/some/where"
TOKENS = {"STREAMD_AUTH_MODE": "required", "STREAMD_ROOT_TOKEN": ROOT}
_HOP = {"connection", "keep-alive", "transfer-encoding"}


class _Forward(BaseHTTPRequestHandler):
    """Passes what is below `PREFIX` on to the server at `port`, without the prefix."""

    port = 0

    def do_GET(self) -> None:
        if not self.path.startswith(PREFIX + "/"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request(self.command, self.path.removeprefix(PREFIX), body, headers)
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.end_headers()
            while piece := answer.read1():
                self.wfile.write(piece)
        except OSError:
            pass  # The browser has left.
        finally:
            connection.close()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", environment=TOKENS) as server:
        yield server


def use(console: Console, streams: str, operations: str) -> None:
    """Make a stream, append to it, and see that arrive: with the root token, and with another one,
    which signs URLs."""
    console.open()
    console.go("buckets")
    console.press("Create a bucket")
    console.answer(name="places")
    console.go("bucket", "places")
    console.press("Create a stream")
    console.answer(name="one", type="text/plain")
    console.sees("h1", "one")
    console.press("Append")
    console.answer(content="hello")
    console.page.wait(".records pre", ["hello"])
    console.go("stream", "places", "one", view="tail")
    console.sees("[role=status]", "live")
    with Client(streams, token=ROOT) as client:
        client.stream("places/one").append("more")
        console.page.wait(".records pre", ["more"])
        asked = {"name": "reader", "scopes": ["read:places/*"]}
        made = httpx.post(f"{operations}/auth/tokens", headers=WITH_ROOT, json=asked)
        console.open(made.raise_for_status().json()["token"])
        console.go("stream", "places", "one", view="tail")
        console.sees("[role=status]", "live")
        client.stream("places/one").append("and more")
    console.page.wait(".records pre", ["and more"])


@contextmanager
def proxy(server: ServerProcess, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A proxy before the server; its port."""
    handler = type("Forward", (_Forward,), {"port": server.port})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        if tls is not None:
            listening.socket = tls.wrap_socket(
                listening.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield listening.server_port
        finally:
            listening.shutdown()
            thread.join()


def test_below_a_path_of_a_proxy(server: ServerProcess) -> None:
    with proxy(server) as port, pages(1) as (page,):
        use(Console(page, f"http://127.0.0.1:{port}{PREFIX}"), server.url, server.url)
        assert page.evaluate("location.pathname") == f"{PREFIX}/console"
        page.open("about:blank")


def test_below_a_path_of_a_proxy_with_tls(server: ServerProcess, tmp_path: Path) -> None:
    pki = make_pki(tmp_path)
    certificate = load_pem_x509_certificate(pki.certificate.read_bytes())
    public = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    # Chromium takes this certificate, and no other that nobody vouches for.
    known = b64encode(sha256(public).digest()).decode()
    argument = f"--ignore-certificate-errors-spki-list={known}"
    with proxy(server, pki.server) as port, pages(1, argument) as (page,):
        use(Console(page, f"https://127.0.0.1:{port}{PREFIX}"), server.url, server.url)
        assert page.evaluate("[window.isSecureContext, location.protocol]") == [True, "https:"]
        page.open("about:blank")


def test_at_the_listener_of_operators(tmp_path: Path) -> None:
    admin = f"127.0.0.1:{unused_port()}"
    environment = {**TOKENS, "STREAMD_ADMIN_LISTEN": admin}
    with (
        ServerProcess(tmp_path / "data", environment=environment) as server,
        pages(1) as (page,),
    ):
        use(Console(page, f"http://{admin}"), server.url, f"http://{admin}")


def test_without_tokens_nobody_is_asked_for_one(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, pages(1) as (page,):
        page.open(f"{server.url}/")
        console = Console(page, server.url)
        console.sees("h1", "Overview")
        console.sees("dd", "a single node")
        console.go("buckets")
        console.sees("pre", f"curl -X PUT '{server.url}/v1/stream/agents/first'")
        console.go("tokens")
        console.sees("[role=alert]", "AUTHENTICATION_REQUIRED")
