"""How long a command's call may take, by a virtual clock: the time for retries and 1.5 s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.client.core import operations, reading
from streamd.client.core.retrying import GRACE_S, Session
from streamd.client.core.steps import Answer, Flow, Lost, Pause, Send, Step
from streamd.client.errors import StreamdError
from tests.client.flows import emitted

BUSY = Answer(503, {}, b"a proxy's page")

# What a node does with a request, given how long the client waits: the time that passes, and the
# answer or the failure.
Node = Callable[[float], tuple[float, Answer | Lost]]


def hangs(patience_s: float) -> tuple[float, Answer | Lost]:
    return patience_s, Lost("no answer in time", sent=True)


def refuses(_: float) -> tuple[float, Answer | Lost]:
    return 0.0, Lost("Connection refused", sent=False)


def is_busy(_: float) -> tuple[float, Answer | Lost]:
    return 0.0, BUSY


def is_slow(patience_s: float) -> tuple[float, Answer | Lost]:
    """As a node without a leader, which answers after ten seconds."""
    return (10.0, BUSY) if patience_s >= 10.0 else hangs(patience_s)


CALLS: dict[str, Callable[[Session], Flow[Any]]] = {
    "head": lambda session: operations.head(session, "/v1/stream/x"),
    "read": lambda session: reading.read(session, "/v1/stream/x", "-1"),
    "follow": lambda session: reading.follow(session, "/v1/stream/x", "-1", "auto"),
    "append": lambda session: operations.append(session, "/v1/stream/x", {}, b"a"),
    "delete": lambda session: operations.delete(session, "/v1/stream/x", {}),
}


class Play:
    """Plays nodes and a clock, and keeps what was said."""

    def __init__(self, nodes: list[Node], retry_for_s: float | None, jitter: float) -> None:
        self.now = 0.0
        self.told: list[tuple[float, str | None]] = []
        urls = [f"http://node{number}" for number in range(len(nodes))]
        self._nodes = dict(zip(urls, nodes, strict=True))
        self.session = Session(
            urls, retry_for_s=retry_for_s, clock=lambda: self.now, jitter=lambda *_: jitter
        )
        self.session.bound(lambda _, what: self.told.append((self.now, what)))

    def __call__(self, step: Step) -> Any:
        if isinstance(step, Pause):
            self.now += step.seconds
            return None
        assert isinstance(step, Send), step
        assert step.timeout_s is not None, "no wait is without an end"
        url = next(url for url in self._nodes if step.url.startswith(url))
        took_s, outcome = self._nodes[url](step.timeout_s)
        self.now += took_s
        return outcome


@given(
    st.sampled_from(sorted(CALLS)),
    st.lists(st.sampled_from([hangs, refuses, is_busy, is_slow]), min_size=1, max_size=3),
    st.none() | st.sampled_from([0.0, 0.5, 1.0, 5.0, 30.0]),
    st.floats(0.5, 1.0),
)
def test_a_call_ends_within_its_time_whatever_the_nodes_do(
    name: str, nodes: list[Node], retry_for_s: float | None, jitter: float
) -> None:
    play = Play(nodes, retry_for_s, jitter)
    with pytest.raises(StreamdError):
        list(emitted(CALLS[name](play.session), play))
    limit_s = 60.0 if retry_for_s is None else retry_for_s
    assert play.now <= limit_s + GRACE_S + 0.3 * len(nodes)
    assert play.told[-1][1] is None, "nothing is waited for any longer"
    assert play.told[0] == (0.0, "waiting for http://node0 to answer")


def test_a_node_that_hangs_leaves_the_others_their_share() -> None:
    answer = Answer(200, {"Stream-Next-Offset": "1", "Stream-Up-To-Date": "true"}, b"a")
    play = Play([hangs, hangs, lambda _: (0.0, answer)], 0.0, 1.0)
    [chunk] = emitted(CALLS["read"](play.session), play)
    assert chunk.data == b"a"
    assert play.now < GRACE_S


def test_what_is_waited_for_is_the_latest_failure() -> None:
    play = Play([is_busy], 5.0, 1.0)
    with pytest.raises(StreamdError):
        list(emitted(CALLS["head"](play.session), play))
    said = [what for _, what in play.told if what is not None]
    assert said[1].startswith("http://node0 cannot serve the request now (503")
    assert said[1].endswith("; trying again")
