"""The states of a connection, as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.http.door.states import FOLLOWING, State
from tests.http.serving import serving, until


def reached(start: State) -> set[State]:
    found: set[State] = set()
    beyond = set(FOLLOWING[start])
    while beyond:
        found |= beyond
        beyond = {state for one in beyond for state in FOLLOWING[one]} - found
    return found


def test_a_connection_may_come_from_its_first_state_to_every_other() -> None:
    assert reached(State.IDLE) == set(State)


def test_a_connection_may_end_in_each_state_and_stays_ended() -> None:
    alive = set(State) - {State.ENDED}
    assert {state for state in State if State.ENDED in FOLLOWING[state]} == alive
    assert not FOLLOWING[State.ENDED]


async def test_a_connection_takes_only_the_states_that_may_follow(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await until(lambda: server.connections == 1)
        [connection] = server.door.connections
        assert connection.state is State.IDLE
        with pytest.raises(AssertionError, match="IDLE to PARKED"):
            connection.enter(State.PARKED)
        await client.send(b"GET")
        await until(lambda: connection.state is State.HEAD)
        server.door.end(connection)
        connection.enter(State.TASK_BUSY)
        assert connection.state is State.ENDED
