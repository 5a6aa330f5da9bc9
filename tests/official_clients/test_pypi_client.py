"""The official client for Python, from PyPI, against a server process.

Its version 0.1.0 knows neither idempotent producers nor the closing of streams; `Stream-Seq` is
what it has against double appends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue

import httpx
import pytest
from durable_streams import DurableStream, SeqConflictError, StreamExistsError, stream

from tests.support.server_process import ServerProcess

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
    tmp_path: Path, live: str, ended_by: str
) -> None:
    heard: Queue[object] = Queue()
    back = threading.Event()
    with ServerProcess(tmp_path / "data") as server:
        url = server.url + URL_PATH
        handle = DurableStream.create(url, content_type="application/json")
        handle.append({"n": 1})
        tailing = (url, live, lambda: back.wait(DEADLINE_S), heard)
        threading.Thread(target=tail, args=tailing, daemon=True).start()
        assert heard.get(timeout=DEADLINE_S) == {"n": 1}
        getattr(server, ended_by)()
        server.start()
        server.wait_ready()
        back.set()
        again = DurableStream.connect(url)
        again.append({"n": 2})
        assert heard.get(timeout=DEADLINE_S) == {"n": 2}
        again.append(END)
        assert heard.get(timeout=DEADLINE_S) == END
        assert heard.empty()
        with stream(url, live=False) as response:
            assert response.read_json() == [{"n": 1}, {"n": 2}, END]


def test_an_append_with_a_sequence_number_is_refused_the_second_time(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        url = server.url + URL_PATH
        handle = DurableStream.create(url, content_type="text/plain")
        handle.append("one", seq="001")
        with pytest.raises(SeqConflictError):
            handle.append("one", seq="001")
        handle.append("two", seq="002")
        with pytest.raises(StreamExistsError):
            DurableStream.create(url, content_type="application/json")
        with stream(url, live=False) as response:
            assert response.read_text() == "onetwo"
        assert handle.head().content_type == "text/plain"
        handle.delete()
        with pytest.raises(Exception, match="404"):
            handle.head()
