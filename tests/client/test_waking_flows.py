"""Subscriptions in the core of the client, with a test in place of the network and the clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from streamd.client.connecting import request_headers
from streamd.client.core import subscribing
from streamd.client.core.producing import ProducerSettings, producer
from streamd.client.core.retrying import Session
from streamd.client.core.steps import Answer, Call, Lost, Request, Send, Step
from streamd.client.core.streams import StreamFlows
from streamd.client.core.waking import GenerationEpochs, HeldWake, WorkerFlows
from streamd.client.errors import (
    AlreadyClaimed,
    Fenced,
    InvalidOffset,
    LeaseLost,
    OutcomeUnknown,
    ProducerFenced,
    Refused,
    StreamClosed,
    SubscriptionNotFound,
)
from streamd.client.names import BadName, parse_name
from streamd.client.subscription_values import ClaimedWake, SubscribedStream, SubscriptionInfo
from tests.client.flows import Network, emitted, refused, result_of

PATH = "/v1/stream/__ds/subscriptions/mail"
STREAMS = (
    SubscribedStream("inbox/a", acked_offset="01", tail_offset="05", has_pending=True),
    SubscribedStream("inbox/b", acked_offset="02", tail_offset="03", has_pending=True),
    SubscribedStream("inbox/c", acked_offset="09", tail_offset="09"),
)
CLAIM = ClaimedWake("w_1", 7, "dsc_1", 3000, STREAMS, "dsw_1")
LOST = Lost("reset", sent=True)
OK = Answer(200, {}, b'{"ok":true,"next_wake":false}')
RECORD = {
    "id": "mail", "subscription_id": "mail", "type": "pull-wake", "wake_stream": "wakes/mail",
    "lease_ttl_ms": 30000, "created_at": "2026-01-01T00:00:00Z", "status": "active",
}  # fmt: skip


def answered(body: Any, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return Answer(status, named, json.dumps(body).encode())


def body(send: Send) -> Any:
    assert isinstance(send.request.body, bytes)
    return json.loads(send.request.body)


def held(network: Network, *, is_webhook: bool = False, session: Session | None = None) -> HeldWake:
    session = session or network.session(retry_for_s=60)
    return HeldWake(session, PATH, CLAIM, network.now_s, is_webhook=is_webhook)


# --- requests about subscriptions


def test_a_subscription_is_created_with_names_below_the_root_of_all_streams() -> None:
    network = Network([answered(RECORD, 201), answered(RECORD)])
    names = ["inbox/a", "/inbox/b", "/v1/stream/c", "größe"]
    settings = subscribing.settings(None, "wakes/mail", "inbox/*", names, 1.5, "mail")
    session = network.session()
    made = result_of(subscribing.create(session, PATH, settings), network)
    assert (made.subscription_id, made.is_new, made.lease_ttl_ms) == ("mail", True, 30000)
    assert result_of(subscribing.create(session, PATH, settings), network).is_new is False
    assert body(network.sent[0]) == {
        "type": "pull-wake", "wake_stream": "wakes/mail", "pattern": "inbox/*",
        "streams": ["inbox/a", "inbox/b", "c", "größe"], "lease_ttl_ms": 1500,
        "description": "mail",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("webhook", "wake_stream", "pattern"),
    [(None, None, "*"), ("https://a", "b/c", "*"), ("https://a", None, None)],
)
def test_settings_that_no_subscription_has_are_refused(
    webhook: str | None, wake_stream: str | None, pattern: str | None
) -> None:
    with pytest.raises(ValueError, match="a subscription has"):
        subscribing.settings(webhook, wake_stream, pattern, (), None, None)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_a_name_that_no_subscription_has_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        subscribing.subscription_path(name)


def test_streams_are_added_and_removed_by_their_names() -> None:
    network = Network([Answer(204, {}, b""), Answer(204, {}, b"")])
    session = network.session()
    result_of(subscribing.link(session, PATH, ["inbox/a", "/inbox/b"]), network)
    result_of(subscribing.unlink(session, PATH, "inbox/ü"), network)
    assert body(network.sent[0]) == {"streams": ["inbox/a", "inbox/b"]}
    assert network.sent[1].url == f"http://a{PATH}/streams/inbox%2F%C3%BC"


def test_listings_are_read_page_by_page() -> None:
    first = {"subscriptions": [RECORD], "has_more": True, "next_cursor": "mail"}
    network = Network([answered(first), answered({"subscriptions": [RECORD], "has_more": False})])
    found = list(emitted(subscribing.listing(network.session(), None), network))
    assert [type(each) for each in found] == [SubscriptionInfo] * 2
    assert network.sent[1].request.params == {"limit": "1000", "after": "mail"}
    page = RECORD | {"streams": [{"path": "a"}], "has_more": True, "next_cursor": "x"}
    network = Network([answered(page), answered(RECORD | {"streams": []})])
    [stream] = emitted(subscribing.streams(network.session(), PATH), network)
    assert (stream.path, stream.link_type, stream.acked_offset) == ("a", "glob", "-1")
    assert network.sent[1].request.params == {"after": "x"}


def test_a_deletion_whose_answer_was_lost_is_confirmed_by_the_next() -> None:
    gone = refused(404, "SUBSCRIPTION_NOT_FOUND")
    network = Network([LOST, gone])
    result_of(subscribing.delete(network.session(retry_for_s=60), PATH), network)
    network = Network([gone])
    with pytest.raises(SubscriptionNotFound):
        result_of(subscribing.delete(network.session(), PATH), network)


def test_an_error_without_a_message_has_its_details() -> None:
    error = {"error": {"code": "ALREADY_CLAIMED", "current_holder": "w-2", "generation": 7}}
    network = Network([answered(error, 409)])
    with pytest.raises(AlreadyClaimed) as info:
        result_of(subscribing.info(network.session(), PATH), network)
    assert (info.value.current_holder, info.value.details["generation"]) == ("w-2", 7)
    assert str(info.value) == "409 ALREADY_CLAIMED"
    odd = Fenced("FENCED", "", 409, {}, {"reason": 1})
    assert (odd.reason, odd.current_holder) == (None, None)


# --- a wake that is held


def test_an_acknowledgement_says_which_wake_it_is_for_and_renews_tokens() -> None:
    network = Network([answered({"ok": True, "token": "dsc_2", "write_token": "dsw_2"}), OK])
    wake = held(network)
    assert "dsc" not in repr(CLAIM)
    result_of(wake.ack({"/inbox/a": "04,2", "inbox/b": "-1"}), network)
    assert network.sent[0].url == f"http://a{PATH}/ack"
    assert body(network.sent[0]) == {
        "wake_id": "w_1", "generation": 7, "done": False,
        "acks": [{"stream": "inbox/a", "offset": "04"}],
    }  # fmt: skip
    assert wake.write_headers == {"Write-Fence": "true", "Write-Token": "dsw_2"}
    result_of(wake.ack({}), network)
    tokens = [(send.request.headers or {})["Authorization"] for send in network.sent]
    assert tokens == ["Bearer dsc_1", "Bearer dsc_2"]


def test_the_end_acknowledges_what_the_wake_came_for_and_nothing_that_was_before() -> None:
    network = Network([OK, answered({"ok": True, "next_wake": True})])
    wake = held(network)
    result_of(wake.ack({"inbox/b": "02"}), network)
    assert result_of(wake.done(None), network) is True
    assert body(network.sent[1])["acks"] == [{"stream": "inbox/a", "offset": "05"}]
    assert body(network.sent[1])["done"] is True
    with pytest.raises(ValueError, match="this wake has ended"):
        result_of(wake.ack({}), network)


def test_the_end_of_a_wake_acknowledges_the_other_streams_when_one_was_deleted() -> None:
    invalid = refused(409, "INVALID_OFFSET")
    network = Network([invalid, OK, invalid, OK])
    assert result_of(held(network).done(None), network) is False
    acks = [[ack["stream"] for ack in body(send)["acks"]] for send in network.sent]
    assert acks == [["inbox/a", "inbox/b"], ["inbox/a"], ["inbox/b"], []]
    network = Network([invalid])
    with pytest.raises(InvalidOffset):
        result_of(held(network).done({"inbox/a": "07"}), network)


@pytest.mark.parametrize(
    "answer",
    [refused(409, "FENCED"), refused(404, "SUBSCRIPTION_NOT_FOUND"), refused(401, "TOKEN_EXPIRED")],
)
@pytest.mark.parametrize(
    "call", [lambda wake: wake.ack({}), lambda wake: wake.done(None), HeldWake.release]
)
def test_a_wake_that_the_server_has_ended_is_lost(
    answer: Answer, call: Callable[[HeldWake], Any]
) -> None:
    network = Network([answer])
    wake = held(network)
    with pytest.raises(LeaseLost, match="the server has ended this wake"):
        result_of(call(wake), network)
    with pytest.raises(LeaseLost):
        wake.check()


def test_an_end_whose_answer_was_lost_is_unknown_and_such_a_release_counts() -> None:
    network = Network([LOST, refused(409, "FENCED")] * 2)
    wake = held(network)
    with pytest.raises(OutcomeUnknown):
        result_of(wake.done(None), network)
    assert wake.is_over
    assert wake.lost is None
    wake = held(network)
    result_of(wake.release(), network)
    assert wake.is_over


def test_a_lease_is_counted_from_before_the_request_that_renewed_it() -> None:
    network = Network([LOST, OK])
    wake = held(network)
    assert (wake.beat_s, wake.left_s) == (1.0, 3.0)
    network.now_s = 1.0
    result_of(wake.ack({}), network)
    assert network.now_s == 1.1
    assert wake.left_s == pytest.approx(2.9)
    network.now_s = 4.5
    assert wake.left_s < 0
    assert str(wake.expire()) == ("LEASE_LOST: the lease of 3 s ended before the server renewed it")


def test_a_webhooks_wake_is_acknowledged_by_callbacks_and_given_back_by_its_lease() -> None:
    network = Network([OK])
    wake = held(network, is_webhook=True)
    result_of(wake.ack({}), network)
    result_of(wake.release(), network)
    assert [send.url for send in network.sent] == [f"http://a{PATH}/callback"]
    assert wake.is_over


# --- a worker that waits


def worker(network: Network) -> WorkerFlows:
    return WorkerFlows(network.session(), "mail", "w-1")


def end(offset: str) -> Answer:
    return Answer(200, {"Stream-Next-Offset": offset, "Stream-Up-To-Date": "true"}, b"[]")


def news(offset: str, *events: object) -> Answer:
    headers = {"Stream-Next-Offset": offset, "Content-Type": "application/json"}
    return Answer(200, headers, json.dumps(events).encode())


def event(subscription_id: str) -> dict[str, object]:
    return {"type": "wake", "subscription_id": subscription_id, "stream": "a", "generation": 1}


CLAIMED = answered(
    {
        "wake_id": "w_1", "generation": 7, "token": "t", "lease_ttl_ms": 1000,
        "streams": [{"path": "inbox/a", "tail_offset": "05", "has_pending": True}],
    }
)  # fmt: skip


def test_a_worker_claims_what_is_there_before_it_waits() -> None:
    network = Network([answered(RECORD), end("10"), CLAIMED])
    wake = result_of(worker(network).next(), network)
    assert [stream.path for stream in wake.pending] == ["inbox/a"]
    urls = [send.url.removeprefix("http://a/v1/stream/") for send in network.sent]
    assert urls == [
        "__ds/subscriptions/mail", "wakes/mail?offset=now", "__ds/subscriptions/mail/claim",
    ]  # fmt: skip
    assert body(network.sent[2]) == {"worker": "w-1"}


def test_a_worker_waits_for_an_event_of_its_subscription() -> None:
    nothing, taken = refused(409, "NO_PENDING_WORK"), refused(409, "ALREADY_CLAIMED")
    others = news("20", event("other"), 7, {"type": "other"})
    script = [answered(RECORD), end("10"), nothing, others, news("30", event("mail"))]
    network = Network([*script, taken, LOST, news("40", event("mail")), CLAIMED])
    flows = worker(network)
    result_of(flows.next(), network)
    polled = [send.request.params for send in network.sent if send.request.params]
    assert [params["offset"] for params in polled] == ["now", "10", "20", "30", "30"]
    assert {params.get("live") for params in polled[1:]} == {"long-poll"}


@pytest.mark.parametrize("answer", [refused(410, "STREAM_OFFSET_GONE"), end("05")])
def test_a_worker_whose_wake_stream_was_trimmed_or_replaced_asks_again(answer: Answer) -> None:
    script = [answered(RECORD), end("10"), refused(409, "NO_PENDING_WORK"), answer]
    network = Network([*script, end("06"), CLAIMED])
    result_of(worker(network).next(), network)
    assert network.sent[-2].url.endswith("wakes/mail?offset=now")


def test_a_worker_of_a_closed_wake_stream_or_of_a_webhook_is_refused() -> None:
    closed = Answer(204, {"Stream-Next-Offset": "10", "Stream-Closed": "true"}, b"")
    script = [answered(RECORD), end("10"), refused(409, "NO_PENDING_WORK"), closed]
    network = Network(script)
    with pytest.raises(StreamClosed, match="wakes/mail is closed"):
        result_of(worker(network).next(), network)
    webhook = RECORD | {"type": "webhook", "wake_stream": None, "webhook": {"url": "https://a"}}
    network = Network([answered(webhook)])
    with pytest.raises(ValueError, match="mail has a webhook"):
        result_of(worker(network).next(), network)


# --- producers of a wake


SETTINGS = ProducerSettings(0.0, 1000, 1, 10_000)
APPENDED = Answer(200, {"Stream-Next-Offset": "11"}, b"")


def written(fence: str, *answers: Answer) -> list[Send]:
    """What a producer of a wake sends to store one message in a stream."""
    info = {"Stream-Next-Offset": "10", "Content-Type": "application/json", "Write-Fence": fence}
    network = Network([Answer(200, info, b""), *answers])

    def play(step: Step) -> Any:
        return step.function() if isinstance(step, Call) else network(step)

    wake = held(network)
    stream = StreamFlows(wake.session, parse_name("answers/a"), None)
    flows = producer(stream, "agent", GenerationEpochs(7), SETTINGS, wake)
    result_of(flows.begin(), play)
    flows.add_json([1], close=False, now=0.0)
    batch = flows.take(0.0)
    assert batch is not None
    flows.settle(batch, result_of(flows.send(batch), play))
    return network.sent[1:]


@pytest.mark.parametrize("fence", ["", "true"])
def test_a_producer_of_a_wake_writes_as_its_generation_and_with_its_token(fence: str) -> None:
    [send] = written(fence, APPENDED)
    headers = dict(send.request.headers or {})
    assert headers["Producer-Epoch"] == "7"
    assert headers.get("Write-Token") == ("dsw_1" if fence else None)
    assert headers.get("Write-Fence") == (fence or None)


def test_a_producer_of_an_earlier_wake_is_fenced_and_chooses_no_later_epoch() -> None:
    with pytest.raises(ProducerFenced, match="a later wake, or another producer of this one"):
        written("", refused(403, "STALE_EPOCH", producer_epoch="8"))
    error = {"code": "FENCED", "message": "so", "reason": "marker", "current_holder": "w-2"}
    with pytest.raises(Fenced) as info:
        written("true", answered({"error": error}, 409))
    assert (info.value.reason, info.value.current_holder) == ("marker", "w-2")


def test_a_server_that_does_not_fence_writes_is_found_out() -> None:
    network = Network([Answer(201, {"Stream-Next-Offset": "00"}, b"")])
    stream = StreamFlows(network.session(), parse_name("answers/a"), None)
    with pytest.raises(Refused, match="does not fence writes"):
        result_of(stream.create("text/plain", None, None, False, b"", True), network)


def test_tokens_of_wakes_go_to_the_origins_that_the_caller_named_and_to_no_other() -> None:
    own = {"Authorization": "Bearer dsc_1", "Write-Token": "dsw_1", "Content-Type": "text/plain"}
    send = Send("http://a/x", Request("POST", "/x", None, own))
    given = {"authorization": "Bearer sd_1", "X-Mine": "1"}
    assert request_headers(send, given) == own | {"X-Mine": "1", "Content-Length": "0"}
    elsewhere = request_headers(send._replace(trusted=False), given)
    assert elsewhere == {"Content-Type": "text/plain", "Content-Length": "0"}
