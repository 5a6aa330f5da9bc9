"""What pages of two origins get from a server in Chromium: one has permission, one has none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from streamd.client import Client
from tests.examples.browsing import Page, pages
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

TEXT = "for friends only"
STREAM = "demo/diary"

# Each is a promise of a page for a string: what it could learn from an answer.
FETCHED = "fetch({url}, {options}).then((answer) => answer.text()).catch(() => '')"
LIVE = """new Promise((resolve) => {{
  const source = new EventSource({url})
  source.addEventListener("data", (event) => resolve(event.data))
  source.onerror = () => resolve("")
}})"""
FRAMED = """new Promise((resolve) => {{
  const frame = document.createElement("iframe")
  frame.onload = () => resolve(frame.contentDocument?.body.innerText ?? "")
  frame.src = {url}
  document.body.append(frame)
}})"""


class Read(NamedTuple):
    how: str
    options: str = "{}"
    query: str = ""

    def of(self, url: str) -> str:
        return self.how.format(url=json.dumps(url + self.query), options=self.options)


READS = {
    "fetch": Read(FETCHED),
    "fetch at the tail": Read(FETCHED, query="?offset=-1&live=long-poll"),
    "fetch without asking for permission": Read(FETCHED, "{mode: 'no-cors'}"),
    "fetch with a preflight": Read(FETCHED, "{headers: {'If-None-Match': 'x'}}"),
    "event source": Read(LIVE, query="?offset=-1&live=sse"),
    "frame": Read(FRAMED),
}
# Also with permission, a page reads no answer that it did not ask to read.
READS_OF_FRIENDS = READS.keys() - {"fetch without asking for permission", "frame"}
WRITES = [
    "{method: 'POST', headers: {'Content-Type': 'text/plain'}, body: 'more'}",
    "{method: 'POST', mode: 'no-cors', headers: {'Content-Type': 'text/plain'}, body: 'more'}",
    "{method: 'POST', headers: {'Content-Type': 'text/plain', 'Stream-Closed': 'true'}}",
    "{method: 'DELETE'}",
]


class Empty(BaseHTTPRequestHandler):
    """A page without content, at every path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a web site with several names."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield site.server_port
        site.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def friend(port: int) -> str:
    return f"http://friend.example:{port}"


@pytest.fixture(scope="module")
def stranger(port: int) -> str:
    return f"http://stranger.example:{port}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, friend: str) -> Iterator[ServerProcess]:
    environment = {"STREAMD_SERVER_ALLOWED_ORIGINS": friend}
    data_dir = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess(data_dir, environment=environment) as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def stream(server: ServerProcess) -> str:
    """The URL of a stream with `TEXT`."""
    with Client(server.url) as client:
        diary = client.stream(STREAM)
        diary.create("text/plain")
        diary.append(TEXT)
    return f"{server.url}/v1/stream/{STREAM}"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browsing() as page:
        yield page


@contextmanager
def browsing(*arguments: str) -> Iterator[Page]:
    with pages(1, *arguments) as (page,):
        yield page


def stored(server: ServerProcess) -> tuple[str, bool]:
    with Client(server.url) as client:
        text = b"".join(chunk.data for chunk in client.stream(STREAM).read()).decode()
        return text, client.stream(STREAM).head().closed


def learned(page: Page, origin: str, stream: str) -> set[str]:
    """By which reads a page of this origin learns what the stream contains."""
    page.open(origin)
    return {name for name, read in READS.items() if TEXT in page.evaluate(read.of(stream))}


def test_a_page_with_permission_reads(page: Page, friend: str, stream: str) -> None:
    assert learned(page, friend, stream) == READS_OF_FRIENDS


def test_a_page_of_a_foreign_origin_reads_nothing(page: Page, stranger: str, stream: str) -> None:
    assert learned(page, stranger, stream) == set()


@pytest.mark.parametrize("options", WRITES)
def test_a_page_of_a_foreign_origin_changes_nothing(
    page: Page, stranger: str, server: ServerProcess, stream: str, options: str
) -> None:
    page.open(stranger)
    page.evaluate(Read(FETCHED, options).of(stream))
    assert stored(server) == (TEXT, False)


def test_no_page_reads_the_administration(page: Page, friend: str, server: ServerProcess) -> None:
    page.open(friend)
    for options in ("{}", "{mode: 'no-cors'}"):
        assert page.evaluate(Read(FETCHED, options).of(f"{server.url}/cluster/status")) == ""


def test_it_is_the_browser_that_keeps_the_rules(page: Page, stranger: str, stream: str) -> None:
    """One that does not shows the page every answer, even the server's refusal."""
    unasked = READS["fetch without asking for permission"].of(stream)
    page.open(stranger)
    assert page.evaluate(unasked) == ""
    with browsing("--disable-web-security") as lawless:
        lawless.open(stranger)
        assert lawless.evaluate(unasked) != ""
