"""The core of the client, with a test in place of the network and the clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamd.client.core import operations, reading, snapshots
from streamd.client.core.retrying import Backoff, Session, ask, receive
from streamd.client.core.steps import Answer, Lost, Request, Send
from streamd.client.core.streams import StreamFlows
from streamd.client.errors import (
    NotAuthenticated,
    OutcomeUnknown,
    PreconditionFailed,
    Refused,
    SnapshotNotFound,
    StreamdError,
    StreamNotFound,
    TooManyRequests,
    Unavailable,
    Unreachable,
)
from streamd.client.names import parse_name
from streamd.client.values import Chunk, Snapshot
from tests.client.flows import Network, emitted, refused, result_of

UNSENT = Lost("refused", sent=False)
CUT = Lost("reset", sent=True)
OK = Answer(200, {}, b"")
GET = Request("GET", "/v1/stream/x")
APPEND = Request("POST", "/v1/stream/x", None, None, b"data")


# --- when a request is tried again


def test_an_address_that_never_answered_is_not_retried() -> None:
    network = Network([UNSENT])
    with pytest.raises(Unreachable, match="http://a cannot be reached"):
        result_of(ask(network.session(), GET), network)
    assert network.pauses == []


def test_a_server_whose_first_answer_breaks_off_is_asked_again() -> None:
    network = Network([Lost("cut", sent=True, answered=True), OK])
    assert result_of(ask(network.session(), GET), network) is OK


def test_a_server_that_answered_once_is_waited_for_with_growing_pauses() -> None:
    network = Network([OK, UNSENT, CUT, CUT, CUT, CUT, CUT, OK])
    session = network.session()
    result_of(ask(session, GET), network)
    assert result_of(ask(session, GET), network) is OK
    assert network.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]


def test_retries_end_after_their_time() -> None:
    network = Network(lambda _: CUT)
    with pytest.raises(Unreachable, match="broke off: reset"):
        result_of(ask(network.session(retry_for_s=5.0), GET), network)
    assert 3 < network.now_s <= 5


def test_every_node_is_asked_before_a_pause() -> None:
    network = Network([UNSENT, UNSENT, UNSENT, UNSENT, OK])
    session = network.session("http://a", "http://b", "http://c", retry_for_s=60)
    assert result_of(ask(session, GET), network) is OK
    assert network.hosts == ["a", "b", "c", "a", "b"]
    assert network.pauses == [0.0, 0.0, 0.1, 0.0]
    network = Network([OK])
    result_of(ask(session, GET), network)
    assert network.hosts == ["b"], "the node that answered is asked next"


def test_a_failure_of_a_node_that_others_have_left_already_moves_nobody() -> None:
    session = Session(["http://a", "http://b"])
    session.avoid("http://a")
    session.avoid("http://a")
    assert session.url == "http://b"


def test_retry_after_is_honoured() -> None:
    network = Network([refused(429, "TOO_MANY_REQUESTS", retry_after="7"), OK])
    assert result_of(ask(network.session(), GET), network) is OK
    assert network.pauses == [7.0]


def test_a_retry_after_beyond_the_time_for_retries_fails_at_once() -> None:
    network = Network([refused(429, "TOO_MANY_REQUESTS", retry_after="100")])
    with pytest.raises(TooManyRequests) as failed:
        result_of(ask(network.session(), GET), network)
    assert failed.value.headers["Retry-After"] == "100"
    assert network.pauses == []


def test_a_busy_server_is_the_error_when_the_time_is_over() -> None:
    network = Network(lambda _: refused(503, "UNAVAILABLE"))
    with pytest.raises(Unavailable, match="UNAVAILABLE"):
        result_of(ask(network.session(retry_for_s=1), GET), network)


def test_a_long_wait_is_announced_once_without_credentials() -> None:
    said: list[str] = []
    network = Network(lambda _: CUT)
    session = network.session("http://me:secret@a", retry_for_s=20, announce=said.append)
    with pytest.raises(Unreachable) as failed:
        result_of(ask(session, GET), network)
    assert said == ["http://***@a broke off: reset; trying again"]
    assert "secret" not in str(failed.value)


# --- what must not happen twice


@pytest.mark.parametrize(
    "harmless", [UNSENT, refused(503, "UNAVAILABLE"), refused(429, ""), refused(503, "OVERLOADED")]
)
def test_an_append_is_repeated_if_it_cannot_have_taken_effect(harmless: Any) -> None:
    network = Network([harmless, OK])
    flow = ask(network.session(retry_for_s=60), APPEND, repeatable=False)
    assert result_of(flow, network) is OK


@pytest.mark.parametrize(
    "doubtful", [CUT, refused(503, "OUTCOME_UNKNOWN"), refused(503), refused(502), refused(504)]
)
def test_an_append_whose_outcome_is_unknown_is_not_repeated(doubtful: Any) -> None:
    network = Network([doubtful])
    with pytest.raises(OutcomeUnknown):
        result_of(ask(network.session(retry_for_s=60), APPEND, repeatable=False), network)
    assert len(network.sent) == 1


def test_a_deletion_that_was_tried_before_takes_absence_for_success() -> None:
    gone = refused(404, "STREAM_NOT_FOUND")
    network = Network([CUT, gone])
    result_of(operations.delete(network.session(retry_for_s=60), "/v1/stream/x"), network)
    with pytest.raises(StreamNotFound):
        result_of(operations.delete(network.session(), "/v1/stream/x"), Network([gone]))


def test_a_head_of_a_busy_server_ends_after_the_time_for_retries_with_the_reason() -> None:
    """An answer to HEAD has no body, so a GET asks for the reason: within the same time."""

    def busy(send: Send) -> Answer:
        return refused(503, "" if send.request.method == "HEAD" else "NO_LEADER")

    network = Network(busy)
    with pytest.raises(Unavailable, match="NO_LEADER"):
        result_of(operations.head(network.session(retry_for_s=60), "/v1/stream/x"), network)
    assert 50 < network.now_s <= 60


def test_a_page_of_a_proxy_is_no_stream() -> None:
    """A proxy that shows a login answers every request with 200 and HTML."""
    page = Answer(200, {"Content-Type": "text/html"}, b"<h1>")
    session = Network([]).session()
    for flow in (
        operations.head(session, "/v1/stream/x"),
        operations.create(session, "/v1/stream/x", {}, b""),
    ):
        with pytest.raises(Refused, match="Stream-Next-Offset is missing"):
            result_of(flow, Network([page]))


# --- credentials and redirects


def redirect(to: str) -> Answer:
    return Answer(307, {"Location": to}, b"")


def test_credentials_follow_a_redirect_only_to_nodes_that_the_caller_named() -> None:
    for target, trusted in (
        ("/elsewhere", True),
        ("http://a:80/v1/stream/x", True),
        ("http://b/v1/stream/x", True),
        ("http://c/v1/stream/x", False),
        ("https://a/v1/stream/x", False),
        ("http://a:81/v1/stream/x", False),
    ):
        network = Network([redirect(target), OK])
        result_of(ask(network.session("http://a", "http://b"), GET), network)
        assert [send.trusted for send in network.sent] == [True, trusted], target


def test_a_body_is_sent_again_where_a_redirect_leads() -> None:
    network = Network([redirect("http://b/leader"), OK])
    result_of(ask(network.session("http://a", "http://b"), APPEND), network)
    assert [(send.url, send.request.body) for send in network.sent] == [
        ("http://a/v1/stream/x", b"data"),
        ("http://b/leader", b"data"),
    ]


def test_a_circle_of_redirects_ends() -> None:
    network = Network(lambda _: redirect("/again"))
    with pytest.raises(Refused, match="redirects"):
        result_of(ask(network.session(), GET), network)


@pytest.mark.parametrize(
    "location", ["ftp://a/x", "file:///etc/passwd", "http://a:port/", "http://[a/"]
)
def test_a_redirect_to_what_is_not_a_url_is_an_error(location: str) -> None:
    network = Network([redirect(location)])
    with pytest.raises(StreamdError, match="redirects to"):
        result_of(ask(network.session(), GET), network)
    assert len(network.sent) == 1


def test_renewed_credentials_are_tried_once() -> None:
    denied = refused(401, "INVALID_TOKEN")
    network = Network([denied, OK])
    assert result_of(ask(network.session(renews=True), APPEND, repeatable=False), network) is OK
    for renews, tries in ((True, 2), (False, 1)):
        network = Network([denied, denied])
        with pytest.raises(NotAuthenticated):
            result_of(ask(network.session(renews=renews), GET), network)
        assert len(network.sent) == tries


def test_a_node_that_a_redirect_led_to_says_why_it_got_no_token() -> None:
    network = Network([redirect("http://c:1/v1/stream/x"), refused(401, "AUTHENTICATION_REQUIRED")])
    with pytest.raises(NotAuthenticated, match="http://c:1/ gets no token unless") as denied:
        result_of(ask(network.session(renews=True), APPEND), network)
    assert (denied.value.code, len(network.sent)) == ("AUTHENTICATION_REQUIRED", 2)


# --- any request


def test_a_refusal_of_streamds_own_with_502_is_final() -> None:
    """It says that a node that is to join does not answer; no proxy says that."""
    network = Network([refused(502, "NO_ANSWER")])
    with pytest.raises(Refused) as final:
        result_of(ask(network.session(), GET), network)
    assert not isinstance(final.value, Unavailable)
    network = Network([refused(502), OK])
    assert result_of(ask(network.session(), GET), network) is OK


def test_a_download_is_asked_for_again_until_its_first_piece() -> None:
    network = Network([UNSENT, OK, CUT, OK, b"one", b"two", b""])
    parts = list(emitted(receive(network.session(retry_for_s=60), GET), network))
    assert parts == [OK, b"one", b"two"]


def test_a_download_that_breaks_off_after_a_piece_is_not_begun_again() -> None:
    network = Network([OK, b"one", CUT, OK, b"one", b""])
    parts = emitted(receive(network.session(), GET), network)
    assert [next(parts), next(parts)] == [OK, b"one"]
    with pytest.raises(Unreachable, match="http://a broke off after 3 bytes"):
        next(parts)


def test_an_empty_download_is_an_answer_alone() -> None:
    network = Network([OK, b""])
    assert list(emitted(receive(network.session(), GET), network)) == [OK]


# --- following


TAIL = {"Stream-Next-Offset": "1", "Stream-Up-To-Date": "true", "Content-Type": "application/json"}


def control(offset: str, *, closed: bool = False) -> bytes:
    end = b',"streamClosed":true' if closed else b',"streamCursor":"7"'
    return b'event: control\ndata: {"streamNextOffset":"%b"%b}\n\n' % (offset.encode(), end)


def test_a_follower_resumes_after_the_last_complete_piece() -> None:
    network = Network(
        [
            Answer(200, TAIL, b"[]"),
            Answer(200, {}, b""),
            b"event: data\ndata: [1]\n\n" + control("2") + b"event: data\ndata: [2]\n\n",
            CUT,  # before the control event of [2]
            UNSENT,
            Answer(200, {}, b""),
            b"event: data\ndata: [2]\n\n" + control("3", closed=True),
        ]
    )
    chunks = emitted(reading.follow(network.session(), "/x", "-1", "auto"), network)
    assert [chunk.json() for chunk in chunks] == [[], [1], [2]]
    assert [send.url for send in network.sent] == [
        "http://a/x?offset=-1",
        "http://a/x?live=sse&offset=1",
        "http://a/x?live=sse&offset=2&cursor=7",
        "http://a/x?live=sse&offset=2&cursor=7",
    ]


def test_events_before_one_control_event_are_one_piece() -> None:
    events = b"event: data\ndata: [1]\n\nevent: data\ndata: [ ]\n\nevent: data\ndata: [2,3]\n\n"
    script = [Answer(200, TAIL, b"[]"), Answer(200, {}, b""), events + control("4", closed=True)]
    network = Network(script)
    chunks = emitted(reading.follow(network.session(), "/x", "-1", "sse"), network)
    assert [chunk.json() for chunk in chunks] == [[], [1, 2, 3]]


def test_a_follower_of_a_server_that_breaks_the_protocol_fails() -> None:
    deep = b'{"x":' + b"[" * 200_000
    for data in (b"nonsense", b"{}", deep):
        events = b"event: control\ndata: " + data + b"\n\n"
        network = Network([Answer(200, TAIL, b"[]"), Answer(200, {}, b""), events])
        with pytest.raises(StreamdError, match="UNEXPECTED"):
            list(emitted(reading.follow(network.session(), "/x", "-1", "sse"), network))


def test_a_follower_waits_without_end_for_a_server_it_knows() -> None:
    down = [UNSENT] * 1000
    script = [Answer(200, TAIL, b"[]"), *down, Answer(200, {}, b""), control("1", closed=True)]
    network = Network(script)
    flow = reading.follow(network.session(), "/x", "-1", "sse")
    assert [chunk.closed for chunk in emitted(flow, network)] == [False, True]
    assert network.now_s > 1000


def test_a_follower_that_only_gets_ended_connections_pauses_between_them() -> None:
    empty = [Answer(200, {}, b""), b""] * 3
    script = [Answer(200, TAIL, b"[]"), *empty, Answer(200, {}, b""), control("1", closed=True)]
    network = Network(script)
    list(emitted(reading.follow(network.session(), "/x", "-1", "sse"), network))
    assert network.pauses == [0.1, 0.2, 0.4]


def test_long_polls_pass_the_cursor_on_and_show_no_silence() -> None:
    silence = Answer(204, {"Stream-Next-Offset": "1", "Stream-Up-To-Date": "true",
                           "Stream-Cursor": "5"}, b"")  # fmt: skip
    ends = {"Stream-Next-Offset": "2", "Stream-Closed": "true", "Content-Type": "application/json"}
    network = Network([Answer(200, TAIL, b"[]"), silence, silence, Answer(200, ends, b"[1]")])
    flow = reading.follow(network.session(), "/x", "-1", "long-poll")
    assert [(chunk.json(), chunk.closed) for chunk in emitted(flow, network)] == [
        ([], False),
        ([1], True),
    ]
    assert [send.url.partition("cursor=")[2] for send in network.sent] == ["", "", "5", "5"]


def test_progress_ends_the_growth_of_pauses() -> None:
    network = Network([])
    backoff = Backoff(network.session(retry_for_s=60))
    assert [backoff.pause_after("http://a", CUT).seconds for _ in range(3)] == [0.1, 0.2, 0.4]
    backoff.reset()
    assert backoff.pause_after("http://a", CUT).seconds == 0.1


# --- answers that bring nothing


EMPTY = {"Stream-Next-Offset": "5", "Content-Type": "application/json"}
AT_END = EMPTY | {"Stream-Up-To-Date": "true"}


def test_a_read_that_gets_no_further_fails_after_the_time_for_retries() -> None:
    network = Network(lambda _: Answer(200, EMPTY, b"[]"))
    with pytest.raises(Unreachable, match="does not advance"):
        list(emitted(reading.read(network.session(retry_for_s=5.0), "/x", "5"), network))
    assert 3 < network.now_s <= 5


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_follower_whose_answers_end_at_once_without_news_asks_slowly(live: reading.Live) -> None:
    """As a cache or a proxy may give them."""
    tail = chunk_at("5")
    control = b'event: control\ndata: {"streamNextOffset":"5","upToDate":true}\n\n'

    def answered() -> Iterator[Any]:
        for _ in range(50):
            yield Answer(200, AT_END, b"" if live == "sse" else b"[]")
            if live == "sse":
                yield from (control, b"")
        yield refused(404, "STREAM_NOT_FOUND")

    network = Network(answered())
    with pytest.raises(StreamNotFound):
        list(emitted(reading.follow_from(network.session(), "/x", tail, live), network))
    assert network.now_s > 60, "50 requests"


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_follower_whose_answers_end_after_a_while_asks_again_at_once(live: reading.Live) -> None:
    tail = chunk_at("5")
    control = b'event: control\ndata: {"streamNextOffset":"5","upToDate":true}\n\n'

    def answered() -> Iterator[Any]:
        for _ in range(50):
            network.now_s += 30
            yield Answer(200, AT_END, b"" if live == "sse" else b"[]")
            if live == "sse":
                yield control
                network.now_s += 30
                yield b""
        yield refused(404, "STREAM_NOT_FOUND")

    network = Network(answered())
    with pytest.raises(StreamNotFound):
        list(emitted(reading.follow_from(network.session(), "/x", tail, live), network))
    assert network.pauses == []


def chunk_at(offset: str) -> Chunk:
    return Chunk("application/json", b"", offset, up_to_date=True)


# --- writes in doubt


@pytest.mark.parametrize(("lost", "error"), [(CUT, OutcomeUnknown), (UNSENT, PreconditionFailed)])
def test_a_close_that_may_have_changed_the_etag_itself_is_not_known_to_have_failed(
    lost: Lost, error: type[StreamdError]
) -> None:
    network = Network([lost, refused(412, "PRECONDITION_FAILED", etag='"later"')])
    close = operations.close(network.session(retry_for_s=60), "/x", {"If-Match": '"e"'})
    with pytest.raises(error) as raised:
        result_of(close, network)
    assert type(raised.value) is error


def test_a_delete_that_no_server_saw_does_not_explain_a_missing_stream() -> None:
    network = Network([UNSENT, refused(404, "STREAM_NOT_FOUND")])
    with pytest.raises(StreamNotFound):
        result_of(operations.delete(network.session(retry_for_s=60), "/x"), network)


def test_a_refusal_of_deeply_nested_json_is_a_refusal() -> None:
    network = Network([Answer(403, {}, b"[" * 100_000)])
    with pytest.raises(Refused, match="403"):
        result_of(ask(network.session(), GET), network)


TOLD = Answer(200, {"Stream-Snapshot-Offset": "2", "Stream-Next-Offset": "3"}, b"")
MISSING = refused(404, "SNAPSHOT_NOT_FOUND")


def read_snapshot(network: Network) -> Any:
    session = network.session(retry_for_s=5.0)
    return result_of(snapshots.read(StreamFlows(session, parse_name("b/x"), None), None), network)


def test_a_snapshot_that_is_replaced_before_it_is_read_is_asked_for_again() -> None:
    network = Network([MISSING, TOLD, refused(307, location="/snapshot/2"), TOLD, b"two"])
    assert read_snapshot(network) == Snapshot("2", "", b"two")


def test_a_server_that_tells_of_a_snapshot_and_has_none_is_not_asked_for_ever() -> None:
    network = Network(lambda send: TOLD if send.request.method == "HEAD" else MISSING)
    with pytest.raises(SnapshotNotFound):
        read_snapshot(network)
    assert 3 < network.now_s <= 5
