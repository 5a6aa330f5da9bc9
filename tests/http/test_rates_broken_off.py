"""Limits of rates where a body or a connection ends too early: it leaves no debt, and no count."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from streamd.http.access import rates
from streamd.http.door.states import State
from streamd.http.protocol.messages import Request
from streamd.http.protocol.routing import resolve
from tests.http.serving import until
from tests.http.test_rates import BINARY, OTHER, STREAM, Limited, append, limited


@pytest.fixture(autouse=True)
def prompt_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "LATE_S", 0.0)


async def test_a_body_that_never_comes_costs_a_bucket_nothing(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client(OTHER) as other:
        offset = (await append(other)).headers["Stream-Next-Offset"]
        await node.limit("bucket", "agents", bytes_in_per_s=1000)
        for request, size in (
            (f"POST {STREAM}", 10_000_000),
            (f"PUT /agents/s/snapshot/{offset}", 100_000_000),
            (f"PUT /agents/s/snapshot/{offset}", 10**14),
        ):
            async with node.server.connect() as raw:
                await node.send(raw, request, Content_Length=str(size))
                if size == 10**14:
                    assert (await raw.read_response()).status == 413
                else:
                    await until(lambda: awaits_body(node))
            await until(lambda: node.server.connections == 1)
            node.clock.now += 1
            assert (await append(other, 1000)).status_code == 204
            node.clock.now += 1


def awaits_body(node: Limited) -> bool:
    """Whether a request was charged, and its body is received."""
    receives = any(one.state is State.TASK_BODY for one in node.server.door.connections)
    return receives or bool(node.server.service.uploads.held)


async def test_a_claim_about_a_body_over_http_2_costs_a_bucket_nothing(tmp_path: Path) -> None:
    async with limited(tmp_path, http="hypercorn") as node, node.client(OTHER) as other:
        await node.limit("bucket", "agents", bytes_in_per_s=1000)
        async with node.client(http1=False, http2=True) as liar:
            lie = {**BINARY, "Content-Length": str(2**62)}
            with suppress(httpx.RemoteProtocolError):
                assert (await liar.post(STREAM, headers=lie, content=b"x")).status_code == 413
        node.clock.now += 1
        assert (await append(other, 1000)).status_code == 204


async def test_a_request_that_is_charged_after_its_connections_end_leaves_no_count(
    tmp_path: Path,
) -> None:
    """A worker, or its client, may have left before the group's process handles its request."""
    async with limited(tmp_path) as node, node.client() as client:
        await node.limit("bucket", "agents", connections=1)
        request = Request("DELETE", STREAM.encode(), b"", {}, b"", cast("Any", None))
        request.connection.close()
        assert node.server.service.rates.refusal(request, resolve(request.path)) is None
        assert (await append(client)).status_code == 204
