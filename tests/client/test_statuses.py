"""Any status from any proxy: a retry succeeds, or a typed error says what became of the request.

A proxy that fails may have passed a request on. So its word on a write is never a refusal, unless
it cannot have reached the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamd.client.core import operations, snapshots
from streamd.client.core.producing import ProducerSettings, producer
from streamd.client.core.retrying import Session, ask, receive
from streamd.client.core.steps import Answer, Call, Flow, Pause, Receive, Request, Send, Step
from streamd.client.core.streams import StreamFlows
from streamd.client.epochs import MemoryEpochs
from streamd.client.errors import (
    OutcomeUnknown,
    Refused,
    StreamClosed,
    StreamdError,
    TooManyRequests,
    Unavailable,
)
from streamd.client.names import parse_name
from tests.client.flows import Network, emitted

# Those that servers and proxies send, and one of each kind that none does.
_USUAL = {400, 401, 403, 404, 408, 409, 410, 413, 421, 425, 429, 499, 500, 501, 502, 503, 504, 599}
STATUSES = [
    status if status in _USUAL else pytest.param(status, marks=pytest.mark.long)
    for status in range(400, 600)
]
# What a proxy answers when it cannot tell what became of the request.
UNSETTLED = {408, 425, *range(500, 600)} - {501}
JSON = "application/json"
END = {"Stream-Next-Offset": "1", "Stream-Closed": "true", "Content-Type": JSON}
PART = b"--x\r\nContent-Type: application/json\r\n\r\n{}\r\n--x--\r\n"


def stream(session: Session) -> StreamFlows:
    return StreamFlows(session, parse_name("demo/x"), JSON)


def produced(session: Session) -> Flow[Any]:
    flows = producer(stream(session), "p", MemoryEpochs(), ProducerSettings(0.0, 100, 4, 1000))
    yield from flows.begin()
    flows.add_json([1], False, 0.0)
    batch = flows.take(1.0)
    assert batch is not None
    return (yield from flows.send(batch))


Operation = Callable[[Session], Flow[Any]]
READS: dict[str, Operation] = {
    "head": lambda s: stream(s).head(),
    "read": lambda s: stream(s).read("-1", None),
    "read-json": lambda s: stream(s).read_json("-1", None, False),
    "follow": lambda s: stream(s).follow("-1", "sse"),
    "follow-json": lambda s: stream(s).follow_json("-1", "long-poll", None, False),
    "snapshot": lambda s: snapshots.read(stream(s), None),
    "bootstrap": lambda s: snapshots.bootstrap(stream(s)),
    "state": lambda s: snapshots.state(stream(s), "auto"),
    "bucket": lambda s: operations.bucket(s, "/demo"),
    "listing": lambda s: operations.listing(s, "/demo", "", None),
    "download": lambda s: receive(s, Request("GET", "/backup")),
    "request": lambda s: ask(s, Request("GET", "/cluster/status")),
}
REPEATABLE: dict[str, Operation] = {
    "create": lambda s: stream(s).create(JSON, None, None, False, b""),
    "fork": lambda s: stream(s).fork("demo/y", None, None, None, None, None),
    "once": lambda s: stream(s).append_json([1], None, None, False, "key"),
    "producer": produced,
    "close": lambda s: stream(s).close(None),
    "delete": lambda s: stream(s).delete(None),
    "publish": lambda s: snapshots.publish(stream(s), "1", b"{}", JSON, None),
    "create-bucket": lambda s: operations.put_bucket(s, "/demo"),
    "delete-bucket": lambda s: operations.delete(s, "/demo"),
}
APPENDS: dict[str, Operation] = {
    "append": lambda s: stream(s).append(b"1", None, None, None, False, None),
    "append-json": lambda s: stream(s).append_json([1], None, None, False, None),
    "append-many": lambda s: stream(s).append_many([b"1", b"2"], None, None, False, None),
    "append-and-close": lambda s: stream(s).append(b"1", None, None, None, True, None),
    "request": lambda s: ask(s, Request("POST", "/cluster"), repeatable=False),
}


class Proxy(Network):
    """In front of a server that answers everything; the first requests get another answer."""

    def __init__(self, status: int, failures: float, body: bytes = b"<h1>Sorry</h1>") -> None:
        super().__init__(self.pass_on)
        self.failing = Answer(status, {}, body)
        self.failures = failures

    def __call__(self, step: Step) -> Any:
        if isinstance(step, Receive):
            return b""
        if isinstance(step, Call):
            return step.function()
        if isinstance(step, Pause):
            assert self.now_s < 10_000, "it never ends"
        return super().__call__(step)

    def pass_on(self, send: Send) -> Answer:
        if len(self.sent) <= self.failures:
            is_head = send.request.method == "HEAD"
            return self.failing._replace(body=b"") if is_head else self.failing
        if send.request.path.endswith("/bootstrap"):
            return Answer(200, END | {"Content-Type": "multipart/mixed; boundary=x"}, PART)
        if send.request.path == "/demo" and send.request.method == "GET":
            return Answer(200, {}, b'{"bucket_id":"demo","streams":0,"created_at_ms":0}')
        if send.request.path == "/demo/streams":
            return Answer(200, {}, b'{"streams":[],"has_more":false}')
        return Answer(200, END, b"")


def ran(operation: Operation, proxy: Proxy) -> StreamdError | None:
    """How it ends: with a typed error, or well."""
    session = proxy.session(retry_for_s=60)
    try:
        for _ in emitted(operation(session), proxy):
            pass
    except StreamdError as error:
        return error
    return None


@pytest.mark.parametrize("status", STATUSES)
def test_what_may_be_repeated_succeeds_once_the_proxy_serves_again(status: int) -> None:
    for name, operation in (READS | REPEATABLE).items():
        failure = ran(operation, Proxy(status, failures=2))
        if status in UNSETTLED or status == 429:
            assert failure is None, (name, failure)
        elif failure is not None:
            assert isinstance(failure, Refused), name
            assert failure.status == status, name


@pytest.mark.parametrize("status", STATUSES)
def test_a_write_whose_effect_is_unknown_is_never_refused(status: int) -> None:
    for name, operation in (REPEATABLE | APPENDS).items():
        failure = ran(operation, Proxy(status, failures=float("inf")))
        assert failure is not None, name
        if status in UNSETTLED:
            assert isinstance(failure, OutcomeUnknown), name
        elif status == 429:
            assert isinstance(failure, TooManyRequests), name
        else:
            assert isinstance(failure, Refused), name
        assert failure.status == status, name


@pytest.mark.parametrize("status", sorted(UNSETTLED))
def test_an_append_is_not_repeated_when_it_may_be_stored(status: int) -> None:
    for name, operation in APPENDS.items():
        proxy = Proxy(status, failures=1)
        assert isinstance(ran(operation, proxy), OutcomeUnknown), name
        assert len(proxy.sent) == 1, name


@pytest.mark.parametrize("status", STATUSES)
def test_a_read_that_a_proxy_fails_ends_with_a_typed_error(status: int) -> None:
    """But for those that go on for as long as it takes."""
    for name, operation in READS.items():
        if name in ("follow", "follow-json", "read", "read-json", "state") and (
            status in UNSETTLED or status == 429
        ):
            continue
        failure = ran(operation, Proxy(status, failures=float("inf")))
        if name == "state" and status in (404, 405):
            continue
        assert isinstance(failure, Unavailable if status in UNSETTLED else Refused), name
        assert failure.status == status, name


def test_a_refusal_of_streamd_itself_is_not_repeated() -> None:
    for status in (500, 507):
        body = b'{"error":{"code":"INTERNAL","message":"a bug"}}'
        proxy = Proxy(status, float("inf"), body)
        assert type(ran(APPENDS["append"], proxy)) is not OutcomeUnknown
        assert len(proxy.sent) == 1


def test_other_servers_tell_by_headers_that_a_stream_is_closed() -> None:
    network = Network([Answer(409, {"Stream-Closed": "true"}, b"Stream is closed")])
    with pytest.raises(StreamClosed):
        next(emitted(APPENDS["append"](network.session()), network))


def test_a_repetition_that_names_no_offset_is_answered_by_the_end_of_the_stream() -> None:
    network = Network([Answer(204, {"Producer-Seq": "0"}, b""), Answer(200, END, b"")])
    assert list(emitted(REPEATABLE["once"](network.session()), network)) == []
    assert [send.request.method for send in network.sent] == ["POST", "HEAD"]


def test_a_success_that_is_not_the_servers_leaves_the_outcome_open() -> None:
    """A proxy's page, with the status 200."""
    network = Network([Answer(200, {}, b"<h1>Welcome</h1>")])
    with pytest.raises(OutcomeUnknown):
        next(emitted(APPENDS["append"](network.session()), network))
