"""Servers that require tokens, in each way in which they are run."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamd.auth.tokens import mint
from streamd.http.router import find
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client

ROOT = mint(1, b"root" * 5)
PLACES = (
    "HTTP/1.1",
    pytest.param("HTTP/2", marks=pytest.mark.long),
    pytest.param("workers", marks=pytest.mark.long),
    pytest.param("cluster", marks=pytest.mark.long),
    pytest.param("admin listener", marks=pytest.mark.long),
)
# Within it every node of an idle cluster knows what another one has acknowledged.
_DEADLINE_S = 10.0
_POLL_S = 0.02


def example(template: str) -> str:
    """A path of that form."""
    return re.sub("{[a-z]+}", "some", template.replace("{file}", "main.js"))


class Authorized:
    """Nodes that require tokens. Requests go to one node after the other, and those of operators to
    `admin_url` if there is one."""

    def __init__(
        self,
        urls: list[str],
        client: httpx.Client,
        *,
        speaks_1_1: bool = True,
        admin_url: str | None = None,
    ) -> None:
        self.urls = urls
        self.speaks_1_1 = speaks_1_1
        self._admin_url = admin_url
        self._client = client
        self._next_url = cycle(urls)
        self._numbers = count()

    def ask(
        self,
        method: str,
        path: str,
        token: str | None = ROOT,
        *,
        headers: Mapping[str, str] | None = None,
        url: str | None = None,
        **body: Any,
    ) -> httpx.Response:
        """Send a request, at the node with that URL if one is given."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        url = url or next(self._next_url)
        if self._admin_url is not None:
            resource = find(path.partition("?")[0].encode()).resource
            is_operators = resource.is_operation and not resource.is_for_clients
            url = self._admin_url if is_operators else url
        return self._client.request(method, url + path, headers=sent, **body)

    def send(self, request: httpx.Request) -> httpx.Response:
        """Send a request as it is."""
        return self._client.send(request)

    def token(self, *scopes: str, **settings: Any) -> str:
        """A new token with these scopes, known to all nodes."""
        name = f"token-{next(self._numbers)}"
        body = {"name": name, "scopes": list(scopes), **settings}
        made = self.ask("POST", "/auth/tokens", json=body)
        assert made.status_code == 201, made.text
        found: str = made.json()["token"]
        for url in self.urls:
            self.until(lambda url=url: self.is_known(found, url))
        return found

    @contextmanager
    def following(
        self, path: str, token: str | None, url: str, signed: str = ""
    ) -> Iterator[Iterator[str]]:
        """The lines of a stream's events, as they come, until the server ends them. The reader has
        a token or a signature."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        query = "?offset=-1&live=sse" + (f"&signed={signed}" if signed else "")
        with self._client.stream("GET", f"{url}{path}{query}", headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            yield answer.iter_lines()

    def named(self, token: str) -> str:
        """The id of a token, which it shows."""
        return token.split("_")[1]

    def is_known(self, token: str, url: str) -> bool:
        """Whether a node takes a token for valid, whatever it permits."""
        return self.ask("GET", "/auth/tokens", token, url=url).status_code != 401

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so. Raises `AssertionError`."""
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "it never is"
            time.sleep(_POLL_S)


@contextmanager
def authorized(place: str, directory: Path, **environment: str) -> Iterator[Authorized]:
    """The servers at one of `PLACES`, and a client that speaks their version of HTTP."""
    is_2 = place == "HTTP/2"
    settings = {
        "STREAMD_AUTH_MODE": "required", "STREAMD_ROOT_TOKEN": ROOT, **environment
    }  # fmt: skip
    with checked_client(http1=not is_2, http2=is_2, timeout=20.0) as client:
        if place == "cluster":
            with ClusterProcesses(directory, proxied=False, environment=settings) as cluster:
                yield Authorized([node.url for node in cluster.nodes.values()], client)
            return
        if place == "workers":
            settings["STREAMD_SERVER_WORKERS"] = "2"
        admin_url = None
        if place == "admin listener":
            address = settings["STREAMD_ADMIN_LISTEN"] = f"127.0.0.1:{unused_port()}"
            admin_url = f"http://{address}"
        flags = ["--http", "hypercorn"] if is_2 else []
        with ServerProcess(directory / "data", flags=flags, environment=settings) as process:
            yield Authorized([process.url], client, speaks_1_1=not is_2, admin_url=admin_url)
