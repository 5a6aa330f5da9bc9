"""One hostile client with as many connections as it gets, and a good one beside it.

CROWD=10000 is the size at which `bench.crowd` measures the good client's latency.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trio

from tests.http.serving import PATIENCE_S
from tests.http.test_rates import BINARY, CI, OTHER, STRANGER, limited

pytestmark = pytest.mark.long

CROWD = int(os.environ.get("CROWD", "300"))
GOOD, HOSTILE = "/v1/stream/others/s", "/v1/stream/agents/s"
APPEND = (
    f"POST {HOSTILE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CI}\r\n"
    "Content-Type: application/octet-stream\r\nContent-Length: 1\r\n\r\nx"
).encode()
SENT = {"idle": b"", "half": APPEND[:50], "ask": APPEND, "pipeline": APPEND * 200}


@pytest.mark.parametrize("behaviour", SENT)
async def test_a_hostile_client_with_all_connections_it_gets_does_not_keep_a_good_one_out(
    behaviour: str, tmp_path: Path
) -> None:
    async with limited(tmp_path, max_connections=CROWD) as node, node.client(OTHER) as good:
        assert (await good.put(GOOD, headers=BINARY)).status_code == 201
        await node.limit("identity", "ci", requests_per_s=5, connections=10)
        with ExitStack() as stack, trio.fail_after(PATIENCE_S + CROWD / 100):
            for _ in range(CROWD):
                crowd = stack.enter_context(
                    socket.create_connection(("127.0.0.1", node.server.port), 5, (STRANGER, 0))
                )
                crowd.setblocking(False)
                with suppress(OSError):  # It was turned away.
                    crowd.send(SENT[behaviour])
                await trio.lowlevel.checkpoint()
            for _ in range(20):
                answer = await good.post(GOOD, headers=BINARY, content=b"x")
                assert answer.status_code == 204
            async with node.client(OTHER) as another:
                assert (await another.get(GOOD)).status_code == 200, "new connections, too"
            tail = (await good.head(HOSTILE)).headers["Stream-Next-Offset"]
            assert int(tail.split("_")[0]) <= 5, "and the hostile one gets no more than its rate"
