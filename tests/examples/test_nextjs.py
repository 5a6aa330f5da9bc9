"""The feed of examples/nextjs: built as for production, and followed in Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from streamd.client import Client, Stream
from tests.docs.pages import ROOT
from tests.examples.applications import Listener
from tests.examples.browsing import chromium
from tests.http.authorized import Authorized, authorized
from tests.support.installed_packages import node_packages_or_skip

pytestmark = pytest.mark.long

HERE = ROOT / "examples" / "nextjs"
QUIET = {"NEXT_TELEMETRY_DISABLED": "1"}
BUILD_TIMEOUT_S = 600


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authorized]:
    with authorized("HTTP/1.1", tmp_path_factory.mktemp("authorized")) as server:
        yield server


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[list[str], Path]]:
    """The command of Next, and the folder with the application."""
    kept = node_packages_or_skip(HERE)
    command = ["node", str(kept / "node_modules" / "next" / "dist" / "bin" / "next")]
    # Below the packages, because there Next looks for them.
    with tempfile.TemporaryDirectory(dir=kept) as directory:
        shutil.copytree(HERE / "app", Path(directory) / "app")
        shutil.copy(HERE / "package.json", directory)
        done = subprocess.run(
            [*command, "build"],
            cwd=directory,
            env={**os.environ, **QUIET},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout
        yield command, Path(directory)


class Feed(Listener):
    """The application, with a token of its own and the stream that it shows."""

    def __init__(self, server: Authorized, built: tuple[list[str], Path], name: str) -> None:
        command, directory = built
        self.server = server
        self.token = server.token(*(f"{may}:{name}" for may in ("create", "append", "read")))
        start = [*command, "start", "--hostname", "127.0.0.1", "--port", "{port}"]
        own = {"STREAMD_URL": server.urls[0], "STREAMD_TOKEN": self.token, "STREAM": name}
        super().__init__(start, {**own, **QUIET}, directory)
        with self.stream() as stream:
            stream.create("application/json")

    @contextmanager
    def stream(self) -> Iterator[Stream]:
        """The stream, for its owner."""
        with Client(self.server.urls[0], token=self.token) as client:
            yield client.stream(self.environment["STREAM"])

    def rotate(self) -> None:
        """Give the application another token; the one before ends at once, and its URLs."""
        path = f"/auth/tokens/{self.server.named(self.token)}/rotate"
        rotated = self.server.ask("POST", path, json={"overlap_s": 0})
        self.environment["STREAMD_TOKEN"] = self.token = rotated.json()["token"]


def test_the_page_shows_what_was_appended_before_and_what_is_appended_meanwhile(
    server: Authorized, built: tuple[list[str], Path]
) -> None:
    feed = Feed(server, built, "news/shown")
    shown = ["before"]
    with feed, feed.stream() as stream, chromium() as page:
        stream.append_json({"text": "before"})
        page.open(feed.url)
        page.wait("li", shown)
        for number in range(3):
            stream.append_json({"text": f"meanwhile {number}"})
            shown.append(f"meanwhile {number}")
            page.wait("li", shown)
        page.reload()
        page.wait("li", shown)


def test_the_page_gets_a_url_that_permits_to_read_and_no_token(
    server: Authorized, built: tuple[list[str], Path]
) -> None:
    with Feed(server, built, "news/read") as feed:
        answer = httpx.get(f"{feed.url}/feed", timeout=60)
        page = httpx.get(feed.url, timeout=60)
        assert feed.token.rpartition("_")[2] not in answer.text + page.text
    url = answer.json()["url"]
    assert httpx.get(url).json() == []
    assert httpx.post(url, json={"text": "forged"}).status_code == 401


def test_an_open_page_continues_with_another_url_when_its_own_has_ended(
    server: Authorized, built: tuple[list[str], Path]
) -> None:
    with Feed(server, built, "news/renewed") as feed, chromium() as page:
        with feed.stream() as stream:
            stream.append_json({"text": "before"})
        page.open(feed.url)
        page.wait("li", ["before"])
        feed.kill()
        feed.rotate()
        with feed.stream() as stream:
            stream.append_json({"text": "after"})
        feed.start()
        page.wait("li", ["before", "after"])
