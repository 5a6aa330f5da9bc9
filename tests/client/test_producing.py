"""The producer's core against a model of the protocol's server, over a bad network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.client.core.producing import Batch, ProducerFlows, ProducerSettings
from streamd.client.core.retrying import Session
from streamd.client.core.steps import Answer, Call, Done, Lost, Pause, Request, Send, Step, resume
from streamd.client.core.streams import StreamFlows
from streamd.client.epochs import Epochs, FileEpochs, MemoryEpochs
from streamd.client.errors import ProducerFenced, SequenceGap, StreamdError
from streamd.client.names import parse_name

SETTINGS = ProducerSettings(
    linger_s=0.01, max_batch_bytes=40, max_in_flight=4, max_queued_bytes=1000
)


def refusal(status: int, code: str, **headers: int) -> Answer:
    named = {name.replace("_", "-").title(): str(value) for name, value in headers.items()}
    return Answer(status, named, json.dumps({"error": {"code": code, "message": ""}}).encode())


class Server:
    """One JSON stream, with the producers' table of protocol section 5.2.1."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.producers: dict[str, tuple[int, int]] = {}
        self.closed = False

    def post(self, request: Request) -> Answer:
        headers: Mapping[str, str] = request.headers or {}
        name, epoch, seq = (
            headers["Producer-Id"], int(headers["Producer-Epoch"]), int(headers["Producer-Seq"]),
        )  # fmt: skip
        known_epoch, last = self.producers.get(name, (-1, -1))
        if epoch < known_epoch:
            return refusal(403, "STALE_EPOCH", producer_epoch=known_epoch)
        if epoch > known_epoch:
            last = -1
        if seq <= last:
            return self._answer(204)
        if seq > last + 1:
            return refusal(409, "SEQUENCE_GAP", producer_expected_seq=last + 1)
        self.producers[name] = (epoch, seq)
        assert isinstance(request.body, bytes)
        body = json.loads(request.body) if request.body else []
        self.log += body if isinstance(body, list) else [body]
        self.closed = self.closed or "Stream-Closed" in headers
        return self._answer(200)

    def _answer(self, status: int) -> Answer:
        headers = {"Stream-Next-Offset": f"{len(self.log):08}"}
        return Answer(status, headers | ({"Stream-Closed": "true"} if self.closed else {}), b"")


class Run:
    """A producer and its requests under way, which proceed in any order."""

    def __init__(
        self, server: Server, random: Random, epochs: Epochs, *, bad_network: bool = True
    ) -> None:
        self.server, self.random, self.now_s = server, random, 0.0
        self.bad_network = bad_network
        session = Session(["http://a"], retry_for_s=float("inf"), clock=lambda: self.now_s)
        stream = StreamFlows(session, parse_name("x"), "application/json")
        self.producer = ProducerFlows(stream, "me", epochs, SETTINGS)
        begin = self.producer.begin()
        step = resume(begin, None, None)
        while not isinstance(step, Done):
            assert isinstance(step, Call)
            step = resume(begin, step.function(), None)
        self.under_way: list[tuple[Batch, Any, Any]] = []
        self.requests = 0
        # What becomes of the next requests, before chance decides.
        self.fates: list[Any] = []

    def step(self) -> bool:
        """Begin a batch, or let a request proceed. Returns whether there was anything to do."""
        if (batch := self.producer.take(self.now_s)) is not None:
            self.under_way.append((batch, self.producer.send(batch), None))
            return True
        if not self.under_way:
            return False
        place = self.random.randrange(len(self.under_way))
        batch, flow, result = self.under_way.pop(place)
        lost = result if isinstance(result, Lost) else None
        try:
            step = resume(flow, None if lost else result, lost)
        except StreamdError as failure:
            self.producer.failure = failure
            raise
        if isinstance(step, Done):
            self.producer.settle(batch, step.value)
        else:
            self.under_way.insert(place, (batch, flow, self._play(step)))
        return True

    def _play(self, step: Step) -> Any:
        if isinstance(step, Pause):
            self.now_s += step.seconds
            return None
        if isinstance(step, Call):
            return step.function()
        assert isinstance(step, Send)
        self.requests += 1
        if self.fates:
            planned = self.fates.pop(0)
            return planned(step) if callable(planned) else planned
        fate = self.random.random() if self.bad_network else 1.0
        if fate < 0.1:
            return Lost("no connection", sent=False)
        if fate < 0.2:
            return refusal(503, "UNAVAILABLE")
        if fate < 0.3:
            return Lost("cut off on the way there", sent=True)
        answer = self.server.post(step.request)
        return Lost("cut off on the way back", sent=True) if fate < 0.5 else answer

    def finish(self) -> None:
        """Flush."""
        mark = self.producer.flush()
        while not self.producer.is_settled(mark):
            self.step()


@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 10**30), max_size=60))
def test_each_append_is_stored_once_and_in_order(random: Random, values: list[int]) -> None:
    server, epochs = Server(), MemoryEpochs()
    for start in (values[:20], values[20:]):  # a second start under the same id
        run = Run(server, random, epochs)
        for value in start:
            run.producer.add_json([value], False, run.now_s)
            run.now_s += random.choice((0.0, 0.001, 0.02))
            while random.random() < 0.5:
                run.step()
        run.finish()
    assert server.log == values


def test_requests_that_overtake_each_other_are_sent_again_in_order() -> None:
    """The later of two requests arrives first: it is refused, and sent after the earlier one."""
    random = Random(5)
    server = Server()
    run = Run(server, random, MemoryEpochs(), bad_network=False)
    values = list(range(10**9, 10**9 + 200))
    for value in values:
        run.producer.add_json([value], False, 0)
    run.finish()
    assert server.log == values
    assert run.requests > 50, "40 bytes hold four of these values, and some batches went twice"


def test_appends_share_a_request_until_their_time_or_its_size_is_reached() -> None:
    run = Run(Server(), Random(1), MemoryEpochs(), bad_network=False)
    assert run.producer.add_json([1], False, 0.0)
    assert run.producer.take(0.009) is None
    assert run.producer.due_at(0.009) == 0.01
    assert not run.producer.add_json([2], False, 0.005)
    batch = run.producer.take(0.01)
    assert batch is not None
    assert (batch.seq, len(batch.entries)) == (0, 2)
    assert run.producer.add(b'"' + b"x" * 50 + b'"', False, 0.01), "full: due at once"


def test_only_one_request_is_under_way_before_the_first_is_acknowledged() -> None:
    run = Run(Server(), Random(1), MemoryEpochs(), bad_network=False)
    for value in range(40):
        run.producer.add_json([value * 10**9], False, 0.0)
    first = run.producer.take(0)
    assert first is not None
    assert run.producer.take(0) is None


@pytest.mark.parametrize("values", [[1], [[]], [[1, 2]], [[1], [2]], [1, 2], [{}]])
def test_messages_stay_apart_from_the_array_that_carries_them(values: list[Any]) -> None:
    """An array that is one message needs another one around it; a lone other message does not."""
    run = Run(Server(), Random(1), MemoryEpochs(), bad_network=False)
    run.producer.add_json(values, False, 0.0)
    run.finish()
    assert run.server.log == values


def test_what_waits_has_a_limit() -> None:
    run = Run(Server(), Random(1), MemoryEpochs(), bad_network=False)
    while run.producer.has_room:
        run.producer.add_json(["x" * 97], False, 0.0)
    assert run.producer.flush() == 11, "1,000 bytes, and one more append"
    run.finish()
    assert run.producer.has_room


def test_a_producer_that_was_replaced_is_fenced() -> None:
    server, epochs = Server(), MemoryEpochs()
    former, later = (Run(server, Random(1), epochs, bad_network=False) for _ in range(2))
    former.producer.add_json([1], False, 0.0)
    former.finish()
    later.producer.add_json([2], False, 0.0)
    later.finish()
    former.producer.add_json([3], False, 0.0)
    with pytest.raises(ProducerFenced) as fenced:
        former.finish()
    assert fenced.value.epoch == later.producer.epoch
    with pytest.raises(ProducerFenced):
        former.producer.flush()
    assert server.log == [1, 2]


def test_a_server_that_answers_all_appends_as_repetitions_does_not_get_them_without_end() -> None:
    run = Run(Server(), Random(1), MemoryEpochs(), bad_network=False)
    answer = Answer(204, {"Stream-Next-Offset": "1"}, b"")
    run.fates = [answer] * 20
    run.producer.add_json([1], False, 0.0)
    with pytest.raises(StreamdError, match="another producer uses this id"):
        run.finish()
    assert run.requests < 10


def test_a_start_takes_over_from_epochs_that_its_store_does_not_know() -> None:
    server = Server()
    server.producers["me"] = (41, 7)
    run = Run(server, Random(1), MemoryEpochs(), bad_network=False)
    run.producer.add_json([1], False, 0.0)
    run.finish()
    assert (server.log, server.producers["me"]) == ([1], (42, 0))


def test_the_first_append_is_not_mistaken_for_that_of_a_start_with_the_same_epoch() -> None:
    server = Server()
    for value in (1, 2):  # each with a store that has lost everything
        run = Run(server, Random(1), MemoryEpochs(), bad_network=False)
        run.producer.add_json([value], False, 0.0)
        run.finish()
    assert server.log == [1, 2]


@pytest.mark.parametrize("fate", [Lost("no connection", sent=False), refusal(503, "UNAVAILABLE")])
def test_a_try_that_cannot_have_been_stored_does_not_explain_a_repetition(fate: Any) -> None:
    """The server says of the second try that it has this request: it means a former start's."""
    server = Server()
    server.post(Request("POST", "x", None, _numbers(epoch=0), b"[1]"))
    run = Run(server, Random(1), MemoryEpochs(), bad_network=False)
    run.fates = [fate]
    run.producer.add_json([2], False, 0.0)
    run.finish()
    assert server.log == [1, 2]


def test_a_first_append_that_may_be_stored_is_not_sent_under_another_epoch() -> None:
    """Another start takes over after it was stored, and before its sender knows."""
    server = Server()
    run = Run(server, Random(1), MemoryEpochs(), bad_network=False)

    def take_over(step: Send) -> Lost:
        server.post(step.request)
        server.post(Request("POST", "x", None, _numbers(epoch=1), b"[2]"))
        return Lost("cut off on the way back", sent=True)

    run.fates = [take_over]
    run.producer.add_json([1], False, 0.0)
    with pytest.raises(ProducerFenced):
        run.finish()
    assert server.log == [1, 2]


def _numbers(*, epoch: int) -> dict[str, str]:
    return {"Producer-Id": "me", "Producer-Epoch": str(epoch), "Producer-Seq": "0"}


def test_a_stream_that_was_replaced_by_another_is_an_error() -> None:
    run = Run(Server(), Random(1), MemoryEpochs(), bad_network=False)
    run.producer.add_json([1], False, 0.0)
    run.finish()
    run.server.producers.clear()
    run.server.producers["me"] = (run.producer.epoch, -1)
    run.producer.add_json([2], False, 0.0)
    with pytest.raises(SequenceGap) as gap:
        run.finish()
    assert gap.value.expected == 0


def test_epochs_in_a_file_grow_over_restarts_and_apart_for_each_producer(tmp_path: Path) -> None:
    file = tmp_path / "epochs"
    assert [FileEpochs(file).next("a", 0) for _ in range(3)] == [0, 1, 2]
    assert (FileEpochs(file).next("b", 0), FileEpochs(file).next("a", 10)) == (0, 10)
    assert FileEpochs(file).next("a", 0) == 11


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 8,
        b'{"a": 7',
        b'["a"]',
        b'{"a": "7"}',
        b'{"a": -1}',
        b'{"b": null}',
        b"[" * 9**5,
    ],
    ids=["empty", "zeros", "cut", "array", "text", "negative", "null", "deep"],
)
def test_no_epoch_is_given_from_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    """It may have been used: the appends of that start would pass for repetitions."""
    file = tmp_path / "epochs"
    file.write_bytes(content)
    for producer_id in ("a", "c"):
        with pytest.raises(ValueError, match=f"{file} is damaged"):
            FileEpochs(file).next(producer_id, 0)
    assert file.read_bytes() == content
