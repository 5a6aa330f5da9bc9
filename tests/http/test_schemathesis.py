"""A live server is asked all that its OpenAPI document allows, and much that it does not.

Whatever it answers must be in the document: status, content type, headers, body. The requests are
the same in each run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from streamd.http.router import describe
from streamd.process.diagnostics import MAX_PROFILE_S
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client

# Each process that shares a run takes seconds only to collect it.
pytestmark = pytest.mark.long

# Others would be wrong here: HTTP wants unknown headers and parameters to be ignored, and whether
# a valid request is granted depends on what was done before.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
    allow_header_conformance,
]
EXAMPLES = 10
# A live read must not take longer than the rest of the test.
SHORT_MS = "20"

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}

# The existing streams by content type.
STREAMS = {
    "text/plain": ("text", "large", "short", "closed", "fork", "source"),
    "application/json": ("json",),
    "application/octet-stream": ("bytes",),
}
READ = ("/v1/stream/{path}", "/{bucket}/{stream}")
QUERIES: tuple[dict[str, str], ...] = (
    {},
    {"offset": "-1", "live": "sse"},
    {"offset": "now", "live": "sse"},
    {"offset": "now", "live": "long-poll"},
)
SUBSCRIPTION = {"type": "pull-wake", "pattern": "agents/*", "wake_stream": "wakes/pool"}
FRAMES = b"\0\0\0\3one\0\0\0\3two"

schema = schemathesis.openapi.from_dict(describe())


class Place:
    """A server with data for every operation."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = checked_client(base_url=url)
        self._random = Random(1)

    def fill(self) -> None:
        """Restore what an earlier test has removed."""
        client = self._client
        client.put("/agents")
        client.put("/agents/text", headers=TEXT, content=b"some text")
        client.put("/agents/bytes", content=b"\0\1")
        client.put("/agents/json", headers=JSON, content=b'[{"n":1},{"n":2}]')
        client.put("/agents/closed", headers={**TEXT, "Stream-Closed": "true"}, content=b"x")
        client.put("/agents/large", headers=TEXT, content=b"much the same " * 200)
        tail = client.put("/agents/short", headers=TEXT, content=b"old").headers
        if "stream-next-offset" in tail:
            at = tail["stream-next-offset"]
            client.put(f"/agents/short/snapshot/{at}", headers=TEXT, content=b"a snapshot")
        client.put("/agents/source", headers=TEXT, content=b"shared")
        client.put("/agents/fork", headers={"Stream-Forked-From": "/agents/source"})
        client.delete("/agents/source")
        client.put("/v1/stream/wakes/pool", headers=JSON)
        client.put("/v1/stream/__ds/subscriptions/mailer", json=SUBSCRIPTION)

    def aim(self, case: schemathesis.Case[Any]) -> None:
        """Aim two requests of three at something that exists, half of them with a chance of
        success."""
        _shorten(case)
        draw = self._random
        if draw.random() < 1 / 3:
            return
        names = case.path_parameters
        fitting = STREAMS.get(case.media_type or "", sum(STREAMS.values(), ()))
        stream = draw.choice(fitting)
        if "bucket" in names:
            names["bucket"] = "agents"
        if "stream" in names:
            names["stream"] = stream
        if "path" in names:
            names["path"] = f"agents/{stream}"
        if "subscription" in names:
            names["subscription"] = "mailer"
        if "snapshot" in names:
            names["stream"] = "short"
            head = self._client.head("/agents/short").headers
            names["snapshot"] = head.get("stream-snapshot-offset", names["snapshot"])
        case.headers.pop("If-Match", None)
        if draw.random() < 1 / 2:
            case.headers.clear()
            case.query.clear()
            if case.method == "GET" and case.operation.path in READ:
                case.query.update(draw.choice(QUERIES))
            if case.operation.path.endswith("append-batch"):
                case.media_type = "application/octet-stream"
                names["stream"] = "bytes"
                case.body = FRAMES


def _shorten(case: schemathesis.Case[Any]) -> None:
    """A profile lasts as long as is asked, and schemathesis gives up after 10 s."""
    seconds = str(case.query.get("seconds", ""))
    if seconds.isdecimal() and 1 <= int(seconds) <= MAX_PROFILE_S:
        case.query["seconds"] = 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    environment = {
        "STREAMD_CLUSTER_NAME": "alone",
        "STREAMD_CLUSTER_LISTEN": f"127.0.0.1:{unused_port()}",
        "STREAMD_SERVER_LONG_POLL_TIMEOUT_MS": SHORT_MS,
        "STREAMD_SERVER_SSE_LIFETIME_MS": SHORT_MS,
    }
    data_dir: Path = tmp_path_factory.mktemp("schemathesis") / "data"
    with ServerProcess(data_dir, environment=environment) as process:
        yield process


@pytest.fixture
def place(server: ServerProcess) -> Place:
    found = Place(server.url)
    found.fill()
    return found


@schema.parametrize()
@settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_server_answers_as_documented(case: schemathesis.Case[Any], place: Place) -> None:
    place.aim(case)
    case.call_and_validate(base_url=place.url, checks=CHECKS)
