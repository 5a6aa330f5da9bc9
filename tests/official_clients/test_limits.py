"""Clients that are beyond a limit of rates wait as long as the server asks, and get through."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from streamd.client import Client
from tests.client.running import Shell
from tests.official_clients.test_npm_client import URL_PATH, running
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

# Each takes four or five seconds' worth, longer than clients pause by themselves. The npm client's
# `IdempotentProducer` does not pause: it reports the refusal.
LINES = [f'{{"n":{number},"text":"{"x" * 30}"}}' for number in range(3)]
_REFUSED = re.compile(r'rate_limited_total\{limit="identity_bytes_in_per_s"\} (\d+)')


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with a stream, whose clients may send ten bytes a second."""
    with ServerProcess(tmp_path / "data") as process:
        httpx.put(process.url + URL_PATH, headers={"Content-Type": "application/json"})
        path = "/cluster/limits/identities/anonymous"
        set_ = httpx.put(process.url + path, json={"bytes_in_per_s": 10})
        assert set_.status_code == 200
        yield process


def refusals(server: ServerProcess) -> int:
    """How many requests were refused so far."""
    found = _REFUSED.search(httpx.get(f"{server.url}/metrics").text)
    assert found is not None
    return int(found[1])


def assert_none_came_too_early(server: ServerProcess) -> None:
    assert httpx.get(server.url + URL_PATH).text == f"[{','.join(LINES)}]"
    # One before each pause at most: a client that hurries is refused several times a second.
    assert 1 <= refusals(server) <= len(LINES)


def test_the_npm_client_waits_as_long_as_it_is_asked_to(server: ServerProcess) -> None:
    with running("append.mjs", server.url + URL_PATH) as producer:
        for line in LINES:
            producer.tell(line)
            assert producer.says() == "acknowledged"
    assert_none_came_too_early(server)


def test_the_command_line_waits_as_long_as_it_is_asked_to(server: ServerProcess) -> None:
    shell = Shell(server.url)
    for line in LINES:
        done = shell.run("append", "demo/events", given=line.encode())
        assert done.returncode == 0, done.stderr
    assert_none_came_too_early(server)


def test_the_python_library_waits_as_long_as_it_is_asked_to(server: ServerProcess) -> None:
    with Client(server.url) as client:
        for line in LINES:
            client.stream("demo/events").append(line)
    assert_none_came_too_early(server)
