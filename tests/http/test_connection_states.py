"""The states of a connection, as a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from streamd.http.door.states import FOLLOWING, State, WrongTransition
from tests.http.serving import serving, until

PUT = b"PUT /v1/stream/s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
APPEND = (
    b"POST /v1/stream/s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
    b"Content-Length: 1\r\n\r\nx"
)
LONG_POLL = b"GET /v1/stream/s?offset=now&live=long-poll HTTP/1.1\r\nHost: x\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> dict[State, frozenset[State]]:
    """The table, as the connections of this test have it."""
    table = dict(FOLLOWING)
    monkeypatch.setattr("streamd.http.door.connection.FOLLOWING", table)
    return table


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
        with pytest.raises(WrongTransition, match="IDLE to PARKED"):
            connection.enter(State.PARKED)
        await client.send(b"GET")
        await until(lambda: connection.state is State.HEAD)
        server.door.end(connection)
        connection.enter(State.TASK_BUSY)
        assert connection.state is State.ENDED


@pytest.mark.parametrize(
    ("before", "after", "request_bytes"),
    [
        (State.ANSWERING, State.PARKED, LONG_POLL),
        (State.PARKED, State.ANSWERING, LONG_POLL),
        (State.TASK_BUSY, State.TASK_IDLE, HEALTH),
        (State.HEAD, State.TASK_BUSY, b"GET"),
    ],
    ids=["in a turn of the reactor", "in a call that was due", "in a task", "in the sweep"],
)
async def test_a_transition_that_the_table_lacks_ends_that_connection_only(
    before: State,
    after: State,
    request_bytes: bytes,
    following: dict[State, frozenset[State]],
    tmp_path: Path,
) -> None:
    with capture_logs() as logs:
        async with serving(tmp_path, header_timeout_ms=100) as server, server.connect() as other:
            await other.send(PUT)
            assert (await other.read_response()).status == 201
            following[before] -= {after}
            async with server.connect() as client:
                await client.send(request_bytes)
                if before is State.PARKED:
                    await until(
                        lambda: State.PARKED in {one.state for one in server.door.connections}
                    )
                    await other.send(APPEND)
                    assert (await other.read_response()).status == 204
                await client.read_to_end()
            await other.send(APPEND)
            assert (await other.read_response()).status == 204
            await until(lambda: server.connections == 1)
    assert [one["event"] for one in logs if one["log_level"] == "error"] == [
        "connection ended by a bug"
    ]
