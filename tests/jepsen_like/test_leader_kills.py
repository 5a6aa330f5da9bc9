"""The leader is killed at each step of a delivery: of a webhook, and of a worker's claim.

After each kill every record is acknowledged or still pending, a wake that outlived the leader goes
on at the next one, and nothing of a wake that has ended takes effect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.jepsen_like.cluster_processes import ClusterProcesses, NodeProcess, wait_until
from tests.jepsen_like.held_webhooks import HeldWebhooks
from tests.jepsen_like.subscribed import Missed, Subscribed, Wake

pytestmark = pytest.mark.long

LOCAL = {"STREAMD_SUBSCRIPTIONS_ALLOW_LOCAL_HTTP": "true"}
SHORT_MS, LONG_MS = 1_000, 60_000
# How long before a retry is due the leader is cut off: it leads on for an election's time.
_BEFORE_RETRY_MS = 300
_ATTEMPTS = 6


# A step comes to its moment, does what is to be proposed, and after the kill says what follows.
Step = Callable[[Subscribed], Iterator[None]]


def a_retry_is_proposed(hook: Subscribed) -> Iterator[None]:
    hook.subscribe(SHORT_MS)
    hook.append()
    hook.next().answer(500)
    wait_until(lambda: hook.state()["next_attempt_at_ms"] is not None, "it failed")
    due_ms = hook.state()["next_attempt_at_ms"] or 0
    wait_until(lambda: time.time() * 1000 > due_ms - _BEFORE_RETRY_MS, "the retry is near")
    yield
    if time.time() * 1000 > due_ms:
        raise Missed
    yield
    retry = hook.next()
    assert retry.came_at > hook.killed_at, "its attempt was in no log that will last"
    assert retry.generation == 1
    retry.answer(done=True)


def a_request_is_sent_and_not_read(hook: Subscribed) -> Iterator[None]:
    hook.subscribe(SHORT_MS)
    hook.receiver.is_deaf = True
    hook.append()
    wait_until(lambda: bool(hook.receiver.unread), "the leader connects")
    yield
    yield
    hook.receiver.hear()
    again = hook.next()
    assert again.generation > 1, "its lease has lapsed"
    again.answer(done=True)


def a_request_is_not_answered(hook: Subscribed) -> Iterator[None]:
    hook.subscribe(LONG_MS)
    hook.append()
    sent = hook.next()
    yield
    yield
    assert hook.end(Wake.delivered(sent)).status_code == 200, "the next leader knows the wake"
    assert hook.is_acknowledged()


def an_answer_has_begun(hook: Subscribed) -> Iterator[None]:
    hook.subscribe(SHORT_MS)
    hook.append()
    sent = hook.next()
    sent.begin_answer()
    yield
    yield
    again = hook.next()
    assert again.generation > sent.generation
    hook.assert_ended(Wake.delivered(sent))
    again.answer(done=True)


def a_result_is_proposed(hook: Subscribed) -> Iterator[None]:
    hook.subscribe(LONG_MS)
    hook.append()
    sent = hook.next()
    yield
    sent.answer(done=True)
    yield
    assert not hook.is_acknowledged(), "the result was in no log that lasts"
    assert hook.end(Wake.delivered(sent)).status_code == 200


def a_result_is_committed(hook: Subscribed) -> Iterator[None]:
    hook.subscribe(SHORT_MS)
    hook.append()
    sent = hook.next()
    sent.answer(done=True)
    wait_until(hook.is_acknowledged, "the result is in the log")
    yield
    yield
    hook.append()
    following = hook.next()
    assert following.generation > sent.generation
    [before], [after] = sent.body["streams"], following.body["streams"]
    assert after["acked_offset"] == before["tail_offset"], "what was acknowledged stays so"
    hook.assert_ended(Wake.delivered(sent))
    following.answer(done=True)


def a_retry_waits(hook: Subscribed) -> Iterator[None]:
    hook.subscribe(SHORT_MS)
    hook.append()
    sent = hook.next()
    sent.answer(500)
    wait_until(lambda: hook.state()["status"] == "failed", "a retry waits")
    yield
    yield
    again = hook.next()
    assert again.generation == sent.generation, "it is the same wake"
    again.answer(done=True)


def a_lease_lapses(hook: Subscribed) -> Iterator[None]:
    hook.subscribe(SHORT_MS)
    hook.append()
    sent = hook.next()
    sent.answer()
    yield
    yield
    again = hook.next()
    assert again.generation > sent.generation
    hook.assert_ended(Wake.delivered(sent))
    again.answer(done=True)


# -- workers ---------------------------------------------------------------------------------------


def _ask_leader(worker: Subscribed, action: str, **given: Any) -> None:
    """Send a request that the leader never answers."""
    url = worker.cluster.leader().url + worker.path(action)

    def send() -> None:
        with suppress(httpx.TransportError):
            httpx.post(url, timeout=60, **given)

    threading.Thread(target=send, daemon=True).start()


def an_event_is_written(worker: Subscribed) -> Iterator[None]:
    worker.subscribe(LONG_MS)
    worker.append()
    yield
    yield
    assert worker.events() == [1], "the event came with the record"
    wake = worker.claim()
    assert wake.generation == 1
    assert worker.end(wake).status_code == 200


def a_claim_is_proposed(worker: Subscribed) -> Iterator[None]:
    worker.subscribe(LONG_MS)
    worker.append()
    yield
    _ask_leader(worker, "claim", json={"worker": "first"})
    yield
    wake = worker.claim("second")
    assert wake.generation == 1, "the first claim was in no log that lasts"
    assert worker.end(wake).status_code == 200


def a_claim_is_held(worker: Subscribed) -> Iterator[None]:
    worker.subscribe(LONG_MS)
    worker.append()
    wake = worker.claim()
    yield
    yield
    assert worker.write(wake, b"result").status_code in (200, 204)
    worker.written += b"result"
    assert worker.end(wake).status_code == 200
    worker.assert_ended(wake)


def an_ack_is_proposed(worker: Subscribed) -> Iterator[None]:
    worker.subscribe(LONG_MS)
    worker.append()
    wake = worker.claim()
    yield
    _ask_leader(worker, "ack", **worker.request_to_end(wake))
    yield
    assert not worker.is_acknowledged(), "the ack was in no log that lasts"
    assert worker.end(wake).status_code == 200


def an_ack_is_committed(worker: Subscribed) -> Iterator[None]:
    worker.subscribe(LONG_MS)
    worker.append()
    wake = worker.claim()
    assert worker.end(wake).status_code == 200
    yield
    yield
    assert worker.is_acknowledged()
    worker.assert_ended(wake)


def a_claim_lapses(worker: Subscribed) -> Iterator[None]:
    worker.subscribe(SHORT_MS)
    worker.append()
    wake = worker.claim("zombie")
    yield
    yield
    successor = worker.claim("successor")
    assert successor.generation > wake.generation
    worker.assert_ended(wake)


def a_claim_is_released(worker: Subscribed) -> Iterator[None]:
    worker.subscribe(LONG_MS)
    worker.append()
    wake = worker.claim()
    given = worker.request_to_end(wake)
    given["json"] = {"wake_id": wake.wake_id, "generation": wake.generation}
    assert worker.about("POST", "release", **given).status_code in (200, 204)
    yield
    yield
    assert worker.events() == [1, 2], "what was given back is work for the next"
    worker.assert_ended(wake)


def an_event_waits(worker: Subscribed) -> Iterator[None]:
    worker.subscribe(LONG_MS, has_wake_stream=False)
    worker.append()
    assert worker.state()["status"] == "failed"
    yield
    yield
    worker.create_wake_stream()
    assert worker.events() == [1], "it is written as soon as that can be"


# -- the kills -------------------------------------------------------------------------------------

ROUNDS = [
    # At these the leader is cut off first, so that what it proposes is in no other log.
    (a_retry_is_proposed, a_claim_is_proposed, True),
    (a_result_is_proposed, an_ack_is_proposed, True),
    (a_request_is_sent_and_not_read, an_event_is_written, False),
    (a_request_is_not_answered, a_claim_is_held, False),
    (an_answer_has_begun, a_claim_lapses, False),
    (a_result_is_committed, an_ack_is_committed, False),
    (a_retry_waits, an_event_waits, False),
    (a_lease_lapses, a_claim_is_released, False),
]


@pytest.fixture(scope="module", name="shared")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    directory: Path = tmp_path_factory.mktemp("killed")
    with ClusterProcesses(directory, environment=LOCAL) as cluster:
        yield cluster


@pytest.fixture
def receiver() -> Iterator[HeldWebhooks]:
    with HeldWebhooks() as receiver:
        yield receiver


@pytest.mark.parametrize(
    ("of_hook", "of_worker", "is_cut"),
    [pytest.param(*one, id=f"{one[0].__name__}-{one[1].__name__}") for one in ROUNDS],
)
def test_a_delivery_survives_the_leader(
    shared: ClusterProcesses, receiver: HeldWebhooks, of_hook: Step, of_worker: Step, is_cut: bool
) -> None:
    for attempt in range(_ATTEMPTS):
        _heal(shared)
        hook = Subscribed(shared, receiver, "webhook")
        worker = Subscribed(shared, receiver, "pull")
        try:
            _kill_at(shared, (worker, of_worker(worker)), (hook, of_hook(hook)), is_cut)
        except Missed:
            assert attempt < _ATTEMPTS - 1, "the step was never reached"
            continue
        hook.finish()
        worker.finish()
        return


def _heal(cluster: ClusterProcesses) -> None:
    """All nodes run, and reach each other."""
    cluster.links.heal()
    for node in cluster.nodes.values():
        if not node.is_alive:
            node.start()
    cluster.wait_ready()


def _kill_at(
    cluster: ClusterProcesses,
    of_worker: tuple[Subscribed, Iterator[None]],
    of_hook: tuple[Subscribed, Iterator[None]],
    is_cut: bool,
) -> None:
    """Kill the leader at the moment of two steps, and go on with them. Raises `Missed`."""
    for _, step in (of_worker, of_hook):
        next(step)
    leader = cluster.leader()
    before = _last_index(leader)
    if is_cut:
        for other in cluster.followers(leader):
            cluster.links.cut(leader.node_id, other.node_id)
    # A retry comes by itself, so the worker's request follows it.
    for _, step in (of_hook, of_worker):
        next(step)
        if is_cut:
            before = _wait_proposed(leader, before)
    leader.kill()
    for subscribed, _ in (of_worker, of_hook):
        subscribed.killed_at = time.monotonic()
    cluster.leader(but=leader.node_id)
    cluster.links.heal()
    leader.start()
    for _, step in (of_worker, of_hook):
        assert next(step, "ended") == "ended"


def _last_index(leader: NodeProcess) -> int:
    status = leader.status()
    if status is None or status["role"] != "leader":
        raise Missed
    return int(status["last_log_index"])


def _wait_proposed(leader: NodeProcess, before: int) -> int:
    """Wait until the leader has an entry after `before`, and return the last one's index. Raises
    `Missed` if others have it too, or the leader no longer leads."""
    wait_until(lambda: _last_index(leader) > before, "it is proposed")
    status = leader.status()
    if status is None or status["commit_index"] > before:
        raise Missed
    return int(status["last_log_index"])
