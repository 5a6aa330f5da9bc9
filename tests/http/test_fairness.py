"""One client's traffic, however slow, tiny or much, costs others next to nothing."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from streamd.http.listeners import ACCEPTS_PER_TURN
from tests.http.serving import PATIENCE_S, serving

STACKS = ["front door", "hypercorn"]


@pytest.mark.parametrize("stack", STACKS)
async def test_many_connections_are_accepted_in_few_turns_of_the_loop(
    stack: str, tmp_path: Path
) -> None:
    many = 256
    async with serving(tmp_path, http=stack.replace(" ", "-")) as server:
        with ExitStack() as clients, trio.fail_after(PATIENCE_S):
            for _ in range(many):
                clients.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            accepted = [0]
            while accepted[-1] < many:
                await trio.lowlevel.checkpoint()
                accepted.append(server.connections)
    in_each = [after - before for before, after in pairwise(accepted)]
    # Between two looks the accepting task may have had its turn twice.
    assert max(in_each) <= 2 * ACCEPTS_PER_TURN, "those who are connected wait for others"
    assert len(in_each) < many / 4, f"{many} connections waited for {len(in_each)} turns"
