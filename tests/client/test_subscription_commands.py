"""``streamd subscription`` against a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.client.test_token_commands import streamd
from tests.support.server_process import ServerProcess

LOCAL = {"STREAMD_SUBSCRIPTIONS_ALLOW_LOCAL_HTTP": "true"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("subscribed")
    with ServerProcess(directory / "data", environment=LOCAL) as server:
        yield server.url


@contextmanager
def receiver(status: int) -> Iterator[str]:
    """The URL of a webhook's receiver, which answers with this status and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()


def shown(url: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(streamd("subscription", "show", name, url=url).stdout)
    return found


def test_a_subscription_is_made_listed_shown_and_deleted(url: str) -> None:
    made = streamd(
        "subscription", "create", "mail er", "--pattern", "mails/*", "--stream", "others/a",
        "--wake-stream", "wakes/pool", "--lease", "1m", "--description", "sends mails", url=url,
    )  # fmt: skip
    record = json.loads(made.stdout)
    assert record["lease_ttl_ms"] == 60_000
    assert record["description"] == "sends mails"
    assert [one["path"] for one in record["streams"]] == ["others/a"]
    again = shown(url, "mail er")
    assert again == {key: record[key] for key in again}
    [listed] = json.loads(streamd("subscription", "list", "--json", url=url).stdout)
    assert listed["id"] == "mail er"
    lines = streamd("subscription", "list", url=url).stdout.splitlines()
    assert lines[1].split() == ["mail", "er", "pull-wake", "mails/*", "active", "0", "0", "none"]
    differs = streamd(
        "subscription", "create", "mail er", "--stream", "b", "--wake-stream", "w",
        url=url, status=1,
    )  # fmt: skip
    assert "SUBSCRIPTION_ALREADY_EXISTS" in differs.stderr
    streamd("subscription", "delete", "mail er", url=url)
    gone = streamd("subscription", "show", "mail er", url=url, status=1)
    assert "SUBSCRIPTION_NOT_FOUND" in gone.stderr


def test_all_pages_of_streams_are_shown(url: str) -> None:
    names = [f"many/{number:04}" for number in range(1001)]
    path = f"{url}/v1/stream/__ds/subscriptions/many"
    config = {"type": "pull-wake", "streams": names[:1000], "wake_stream": "wakes/many"}
    httpx.put(path, json={**config, "pattern": "many/*"}).raise_for_status()
    streamd("create", names[-1], "-t", "json", url=url)
    assert [one["path"] for one in shown(url, "many")["streams"]] == names


def test_a_test_says_whether_a_worker_came(url: str) -> None:
    streamd("create", "wakes/tested", "-t", "json", url=url)
    streamd(
        "subscription", "create", "tested", "--pattern", "t/*", "--wake-stream", "wakes/tested",
        url=url,
    )  # fmt: skip
    alone = streamd("subscription", "test", "tested", "--timeout", "1s", url=url, status=1)
    assert "nobody came: the wake waits" in alone.stderr
    path = f"{url}/v1/stream/__ds/subscriptions/tested"
    claimed = httpx.post(f"{path}/claim", json={"worker": "w-1"}).raise_for_status().json()
    assert "claimed by w-1" in streamd("subscription", "test", "tested", url=url).stdout
    assert "claimed by w-1" in streamd("subscription", "list", url=url).stdout
    assert claimed["generation"] == 1


@pytest.mark.parametrize(
    ("status", "exit_status", "told"),
    [(202, 0, "the webhook was received"), (500, 1, "nobody came: ")],
)
def test_a_test_of_a_webhook_says_what_its_receiver_answered(
    url: str, status: int, exit_status: int, told: str
) -> None:
    name = f"hook-{status}"
    with receiver(status) as hook:
        streamd("subscription", "create", name, "--pattern", "h/*", "--webhook", hook, url=url)
        ran = streamd("subscription", "test", name, url=url, status=exit_status)
        assert told in ran.stdout + ran.stderr
        assert (str(status) in ran.stderr) is (exit_status == 1)
        streamd("subscription", "delete", name, url=url)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--pattern", "a/*"], "give either --webhook or --wake-stream"),
        (["--pattern", "a/*", "--webhook", "https://a.example", "--wake-stream", "w"], "either"),
        (["--webhook", "https://a.example"], "give --pattern or --stream"),
        (["--pattern", "a/*", "--wake-stream", "w", "--lease", "1x"], "1x"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_request(options: list[str], told: str) -> None:
    refused = streamd("subscription", "create", "a", *options, status=2)
    assert told in refused.stderr
