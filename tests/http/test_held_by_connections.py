"""What connections hold of the requests that they have answered."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import trio.testing

from streamd.http.protocol.heads import Head
from streamd.protocol.problems import ProblemError
from tests.http.serving import serving, until
from tests.http.test_reactor import APPEND, CREATE, HEALTH, READ, exchange


@pytest.mark.parametrize("request_", [READ, HEALTH], ids=["in the reactor", "in a task"])
async def test_an_idle_connection_holds_nothing_of_its_last_request(
    request_: bytes, tmp_path: Path
) -> None:
    large = request_.replace(b"\r\n\r\n", b"\r\nX-Padding: " + b"x" * 10_000 + b"\r\n\r\n")
    gc.collect()  # What other tests left.
    async with serving(tmp_path) as server, server.connect() as client:
        await exchange(client, CREATE, 201)
        await exchange(client, large, 200)
        await trio.testing.wait_all_tasks_blocked()
        heads = [one for one in gc.get_objects() if isinstance(one, Head)]
    assert not [head for head in heads if b"x-padding" in head.fields.headers]


@pytest.mark.parametrize(
    "request_",
    [
        b"malformed\r\n\r\n",
        READ.replace(b"/s ", b"/../s "),
        APPEND.replace(b"Content-Length: 1", b"Transfer-Encoding: chunked") + b"\r\n",
        APPEND.replace(b": 1\r\n", b": 99\r\n"),
    ],
    ids=["a head", "a target", "a body in a task", "a body by its length"],
)
async def test_a_refused_request_is_freed_without_the_garbage_collector(
    request_: bytes, tmp_path: Path
) -> None:
    gc.collect()
    gc.disable()
    try:
        async with serving(tmp_path, max_body_bytes=98) as server, server.connect() as client:
            await client.send(request_)
            assert (await client.read_response()).status in (400, 413)
            client.finish_sending()
            await until(lambda: server.connections == 0)
            rejections = [one for one in gc.get_objects() if isinstance(one, ProblemError)]
    finally:
        gc.enable()
    assert not rejections
