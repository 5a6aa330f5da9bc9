"""Signed URLs with clients that were not written for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from durable_streams import DurableStream, DurableStreamError, stream

from tests.http.authorized import ROOT, Authorized, authorized
from tests.http.test_signed_urls import value
from tests.official_clients.test_npm_client import URL_PATH, running

pytestmark = pytest.mark.long


@pytest.fixture(params=["HTTP/1.1", "workers"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Authorized]:
    with authorized(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def handle(server: Authorized) -> DurableStream:
    headers: Any = {"Authorization": f"Bearer {ROOT}"}
    return DurableStream.create(
        server.urls[0] + URL_PATH, content_type="application/json", headers=headers
    )


def signed(server: Authorized, token: str, *methods: str) -> str:
    url = server.urls[0] + URL_PATH
    return f"{url}?signed={value(token, url, *methods)}"


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_the_npm_client_follows_a_signed_url(
    server: Authorized, handle: DurableStream, live: str
) -> None:
    url = signed(server, server.token("read:demo/*"))
    with running("tail.mjs", url, live) as tail:
        for number in range(3):
            handle.append({"n": number})
            assert tail.says() == f'{{"n":{number}}}'


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_the_pypi_client_follows_a_signed_url(
    server: Authorized, handle: DurableStream, live: Any
) -> None:
    url = signed(server, server.token("read:demo/*"))
    handle.append({"n": 1})
    with stream(url, offset="-1", live=live) as response:
        heard = next(iter(response.iter_events(mode="json")))
    assert heard.data == [{"n": 1}]


def test_the_pypi_client_appends_by_a_signed_url(server: Authorized, handle: DurableStream) -> None:
    url = signed(server, server.token("append:demo/*", "read:demo/*"), "GET", "POST")
    writer = DurableStream(url, content_type="application/json")
    writer.append({"n": 1})
    read_only = DurableStream(
        signed(server, server.token("read:demo/*")), content_type="application/json"
    )
    with pytest.raises(DurableStreamError):
        read_only.append({"n": 2})
    assert httpx.get(url).json() == [{"n": 1}]


def test_an_event_source_follows_a_signed_url_until_its_token_is_revoked(
    server: Authorized, handle: DurableStream
) -> None:
    """As in a browser: it sends no header of the page's."""
    token = server.token("read:demo/*")
    url = signed(server, token) + "&offset=-1&live=sse"
    with running("--experimental-eventsource", "events.mjs", url) as source:
        assert source.says() == "open"
        for number in range(3):
            handle.append({"n": number})
            assert source.says() == f'[{{"n": {number}}}]'
        server.ask("DELETE", f"/auth/tokens/{server.named(token)}")
        assert source.says() == "again"
        assert source.status() == 0, "a 401 is final"
