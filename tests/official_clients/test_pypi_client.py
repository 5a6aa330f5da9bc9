"""The official client for Python, from PyPI, against a server process.

Its version 0.1.0 knows neither idempotent producers nor the closing of streams.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Queue

import httpx
import pytest
from durable_streams import DurableStream, stream

from tests.official_clients.test_npm_client import restarted
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

DEADLINE_S = 60.0
URL_PATH = "/v1/stream/demo/events"
END = {"end": True}


def tail(url: str, live: str, wait_for_server: Callable[[], object], heard: Queue[object]) -> None:
    """Put each message into `heard` until the last; resume at the last offset when cut off."""
    offset = "-1"
    while True:
        try:
            with stream(url, offset=offset, live=live) as response:  # type: ignore[arg-type]
                for event in response.iter_events(mode="json"):
                    offset = event.next_offset
                    for item in event.data:
                        heard.put(item)
                        if item == END:
                            return
        except httpx.HTTPError:
            wait_for_server()


@pytest.mark.parametrize("live", ["sse", "long-poll"])
@pytest.mark.parametrize("ended_by", ["stop", "kill"])
def test_a_tail_gets_each_message_once_over_a_restart(
    server: ServerProcess, live: str, ended_by: str
) -> None:
    heard: Queue[object] = Queue()
    back = threading.Event()
    url = f"{server.url}{URL_PATH}-{live}-{ended_by}"
    handle = DurableStream.create(url, content_type="application/json")
    handle.append({"n": 1})
    tailing = (url, live, lambda: back.wait(DEADLINE_S), heard)
    threading.Thread(target=tail, args=tailing, daemon=True).start()
    assert heard.get(timeout=DEADLINE_S) == {"n": 1}
    restarted(server, getattr(server, ended_by))
    back.set()
    again = DurableStream.connect(url)
    again.append({"n": 2})
    assert heard.get(timeout=DEADLINE_S) == {"n": 2}
    again.append(END)
    assert heard.get(timeout=DEADLINE_S) == END
    assert heard.empty()
    with stream(url, live=False) as response:
        assert response.read_json() == [{"n": 1}, {"n": 2}, END]
