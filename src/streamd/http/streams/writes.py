"""Handlers that write: create, append, close, delete (protocol sections 5.1 to 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from streamd.http.access import write_tokens
from streamd.http.access.write_tokens import ClaimIdentity
from streamd.http.protocol import fields
from streamd.http.protocol.fields import ANY_STATE, if_match, named_tag
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.refusals import answer_to, error_response
from streamd.http.protocol.routing import StreamRoute
from streamd.http.streams import fenced_writes
from streamd.http.streams.service import (
    BUCKET_NOT_FOUND,
    GONE,
    NOT_FOUND,
    Service,
    offset_gone,
    quota_answer,
)
from streamd.node.foresight import SMALL_WRITE_BYTES
from streamd.protocol.headers import CONTENT_TYPE, IF_NONE_MATCH
from streamd.protocol.problems import Problem, ProblemError
from streamd.streams.commands import Append, Command, Create, Delete, Outcome, Result
from streamd.streams.content import (
    DEFAULT_CONTENT_TYPE,
    SMALL_BYTES,
    InvalidJson,
    Records,
    TooManyMessages,
    is_json,
    media_type,
    same_media_type,
    split_body,
)
from streamd.streams.etags import CLOSED, STATE_TAG, state_tag
from streamd.streams.model import ForkRequest, VerifiedPosition
from streamd.streams.offsets import Position
from streamd.streams.producers import MAX_PRODUCERS
from streamd.streams.subscriptions.model import FenceStamp

_TOO_MANY_PRODUCERS = error_response(
    Problem.TOO_MANY_PRODUCERS,
    f"the stream remembers {MAX_PRODUCERS} producers, and none has been idle for an hour; append "
    "with a Producer-Id that it knows",
)
R = TypeVar("R")

_CLOSED = b"Stream-Closed: true\r\n"
# Both lines in one format string: every append pays for the formatting.
_POSITION = b"Stream-Next-Offset: %b\r\nETag: " + STATE_TAG + b"\r\n"


# Makes the command of another request with the same head from its body; None if that has to be
# judged by itself.
Again = Callable[[bytes], Append | None]


class Write(Struct, frozen=True):
    """A command to propose, its payload in bytes, and what makes the answer of the command and its
    outcome: also of those that come of it `again`."""

    command: Command
    size: int
    answer: Callable[[Any, Outcome], Response]
    again: Again | None = None


@dataclass(frozen=True)
class AppendForm(Generic[R]):
    """A form of append.

    `content_type` and `cut` say what its body is, `stream` which stream its route names, and
    `answer` what a client gets for the outcome. The first two raise `ProblemError`.
    """

    content_type: Callable[[Request], str]
    cut: Callable[[str, bytes], Records]
    stream: Callable[[R], StreamRoute]
    answer: Callable[[R, Append, Outcome], Response]

    def begin(self, request: Request, route: R) -> Write | None:
        """Append the records of a small body, and close the stream if the headers say so. None
        leaves it to `append`."""
        if len(request.body) > SMALL_WRITE_BYTES or write_tokens.are_shown(request.headers):
            return None
        kind = self.content_type(request)
        try:
            records = self.cut(kind, request.body)
        except ProblemError:
            return None  # Errors of the stream come first, and it may have to be looked up.
        return self.write(request, route, kind, records)

    async def append(self, service: Service, request: Request, route: R) -> Response:
        """As `begin`, for any body, and for fenced writes."""
        fence = await service.write_stamp(request)
        kind = self.content_type(request)
        try:
            records = await _cut(service, self.cut, kind, request.body)
        except ProblemError as unfit:
            if isinstance(request.identity, ClaimIdentity):
                return answer_to(unfit)  # Whether there is a stream is not for it to know.
            return await _stream_refusal(service, self.stream(route), kind) or answer_to(unfit)
        write = self.write(request, route, kind, records, fence)
        outcome = await service.node.foresight.propose(write.command, write.size)
        return write.answer(write.command, outcome)

    def write(
        self,
        request: Request,
        route: R,
        kind: str,
        records: Records,
        fence: FenceStamp | None = None,
    ) -> Write:
        """The append of a request's records. Raises `ProblemError`."""
        headers = request.headers
        key = self.stream(route).key
        terms = (
            fields.wants_close(headers),
            fields.stream_seq(headers),
            fields.producer(headers),
            if_match(headers),
            fence,
        )

        def again(body: bytes) -> Append | None:
            if len(body) > SMALL_WRITE_BYTES:
                return None
            try:
                data, lengths = self.cut(kind, body)
            except ProblemError:
                return None
            return Append(key, kind, data, lengths, *terms)

        command = Append(key, kind, records.data, records.lengths, *terms)
        return Write(command, len(records.data), partial(self.answer, route), again)


def content_type(request: Request, why: str = "") -> str:
    """The content type of a body, which needs one; `why` replaces the problem's message. Raises
    `ProblemError`."""
    raw_type = request.headers.get(CONTENT_TYPE.key)
    if not raw_type:
        raise Problem.MISSING_CONTENT_TYPE.error(why)
    return fields.content_type(raw_type)


def _content_type(request: Request) -> str:
    """The content type of an append, empty without a body. Raises `ProblemError`."""
    if request.body:
        return content_type(request)
    if not fields.wants_close(request.headers):
        raise Problem.EMPTY_BODY.error()
    return ""


def _appended(kind: str, body: bytes) -> Records:
    """The body of an append as records. Raises `ProblemError`."""
    records = _records(kind, body)
    if body and not records.lengths:
        raise Problem.EMPTY_BODY.error("an empty array appends nothing")
    return records


async def _stream_refusal(service: Service, route: StreamRoute, kind: str) -> Response | None:
    """The error of any append of type `kind` to this stream, or None if one can succeed.

    Errors of the stream take precedence over errors of the body (protocol section 5.2). Raises
    `Unavailable`.
    """
    stream = await service.find(route)
    if isinstance(stream, Response):
        return stream
    if stream.closed:
        return _stream_closed(_closed_head(stream.tail))
    if not same_media_type(kind, stream.content_type):
        return _type_differs(stream.content_type, b"")
    return None


def _closed_head(tail: Position) -> bytes:
    return _CLOSED + b"Stream-Next-Offset: %b\r\n" % tail.token()


def _stream_closed(head: bytes) -> Response:
    return error_response(Problem.STREAM_CLOSED, head=head)


def _type_differs(content_type: str, head: bytes) -> Response:
    message = f"the stream's content type is {content_type}"
    return error_response(Problem.CONTENT_TYPE_MISMATCH, message, head)


def append_answer(route: StreamRoute, command: Append, outcome: Outcome) -> Response:
    """The outcome of an append as the protocol answers it."""
    result = outcome.result
    if result is Result.APPENDED or result is Result.CLOSED:
        assert outcome.tail.byte >= len(command.data), "what was appended lies before the tail"
        head = _position(outcome)
        if outcome.closed:
            head += _CLOSED
        if command.producer is None:
            return Response(204, head)
        head += b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\n" % (outcome.epoch, outcome.seq)
        return Response(200 if result is Result.APPENDED else 204, head)
    if result is Result.DUPLICATE:
        # The tail and its tag are those of the first try: if others have written since, the
        # producer's next `If-Match` must fail.
        head = b"%bProducer-Epoch: %d\r\nProducer-Seq: %d\r\n" % (
            _position(outcome),
            outcome.epoch,
            outcome.seq,
        )
        return Response(204, head + _CLOSED if outcome.closed else head)
    return _refusal(command, outcome, route)


def _position(outcome: Outcome) -> bytes:
    """The tail after a write, or the one that the write found, and its ETag."""
    assert outcome.incarnation, "a tag names a stream that exists"
    tail = outcome.tail.token()
    return _POSITION % (tail, outcome.incarnation, tail, CLOSED if outcome.closed else b"")


def precondition_failed(outcome: Outcome, route: StreamRoute) -> Response:
    """412 with the stream's state for the next try; or 404 if the bucket does not exist."""
    if outcome.result is Result.BUCKET_NOT_FOUND and not route.implicit_bucket:
        return BUCKET_NOT_FOUND
    if not outcome.incarnation:
        message = "If-Match is given, but the stream does not exist"
        return error_response(Problem.PRECONDITION_FAILED, message)
    return _state_differs(outcome, "the stream is not in a state that If-Match names")


def _state_differs(outcome: Outcome, message: str) -> Response:
    head = _position(outcome)
    if outcome.closed:
        head += _CLOSED
    return error_response(Problem.PRECONDITION_FAILED, message, head)


def _refusal(command: Append, outcome: Outcome, route: StreamRoute) -> Response:
    head = _closed_head(outcome.tail) if outcome.closed else b""
    match outcome.result:
        case Result.NOT_FOUND:
            return NOT_FOUND
        case Result.GONE:
            return GONE
        case Result.PRECONDITION_FAILED | Result.BUCKET_NOT_FOUND:
            return precondition_failed(outcome, route)
        case Result.STREAM_CLOSED:
            return _stream_closed(head)
        case Result.CONTENT_TYPE_DIFFERS:
            return _type_differs(outcome.content_type, head)
        case Result.TOO_MANY_PRODUCERS:
            return _TOO_MANY_PRODUCERS
        case Result.WRITE_FENCED | Result.WRITE_OUT_OF_SCOPE:
            return fenced_writes.refusal(command, outcome)
        case Result.SEQ_REGRESSION:
            return error_response(Problem.SEQUENCE_CONFLICT, head=head)
        case Result.EPOCH_STALE:
            head += b"Producer-Epoch: %d\r\n" % outcome.epoch
            return error_response(Problem.STALE_EPOCH, head=head)
        case Result.EPOCH_WITHOUT_RESTART:
            return error_response(Problem.INVALID_EPOCH_SEQ, head=head)
        case Result.SEQ_GAP:
            assert command.producer is not None
            head += b"Producer-Expected-Seq: %d\r\nProducer-Received-Seq: %d\r\n" % (
                outcome.seq,
                command.producer.seq,
            )
            return error_response(Problem.SEQUENCE_GAP, head=head)
        case _:
            return quota_answer(outcome)


# POST of a body that is one record, or JSON messages; or only the close of a stream.
APPEND = AppendForm(_content_type, _appended, lambda route: route, append_answer)


def begin_create(request: Request, route: StreamRoute) -> Write | None:
    """PUT: create a stream, or confirm that it exists as asked for. None leaves it to `create`."""
    if len(request.body) > SMALL_WRITE_BYTES:
        return None
    command = _create(request, route)
    kind = command.settings.content_type or DEFAULT_CONTENT_TYPE
    if command.settings.fork is not None or command.settings.write_fence:
        return None
    if request.body:
        try:
            command = _with_records(command, kind, _records(kind, request.body))
        except ProblemError:
            return None  # It does not matter if the stream exists.
    return _write_create(request, route, command)


def _write_create(request: Request, route: StreamRoute, command: Create) -> Write:
    return Write(command, len(command.data), partial(_create_answer, request, route))


def write_create(request: Request, route: StreamRoute, kind: str, records: Records) -> Write | None:
    """The creation of a stream with these records; None leaves it to `create`."""
    command = _create(request, route)
    if command.settings.fork is not None or command.settings.write_fence:
        return None
    return _write_create(request, route, _with_records(command, kind, records))


async def create(service: Service, request: Request, route: StreamRoute) -> Response:
    """As `begin_create`, for any body, forks and fenced streams."""
    command = _create(request, route)
    if command.settings.write_fence and not await service.may_fence():
        raise Problem.WRITE_FENCE_UNAVAILABLE.error()
    fork = command.settings.fork
    if fork is None:
        outcome = await _propose_stream(service, command, request.body)
    else:
        outcome = await _propose_fork(service, command, fork, request.body)
    return _create_answer(request, route, command, outcome)


def _create(request: Request, route: StreamRoute) -> Create:
    """The command without initial records. Raises `ProblemError`."""
    headers = request.headers
    fork = fields.fork_request(headers, fields.fork_source(headers))
    return Create(
        route.key,
        fields.create_settings(headers, fork),
        fields.wants_close(headers),
        implicit_bucket=route.implicit_bucket,
        if_match=if_match(headers),
    )


async def _propose_stream(service: Service, command: Create, body: bytes) -> Outcome:
    kind = command.settings.content_type or DEFAULT_CONTENT_TYPE
    try:
        command = await _with_body(service, command, kind, body)
    except ProblemError:
        # If the stream exists, the body does not matter (protocol section 5.1).
        existing = replace(command, if_match=command.if_match or ANY_STATE)
        outcome = await service.node.group.writes.propose(existing)
        if outcome.result is Result.PRECONDITION_FAILED:
            raise
        return outcome
    return await service.node.foresight.propose(command, len(command.data))


async def _propose_fork(
    service: Service, command: Create, fork: ForkRequest, body: bytes
) -> Outcome:
    """Propose the fork; retry if its source changed meanwhile."""

    async def find() -> VerifiedPosition:
        nonlocal command
        kind = command.settings.content_type or await _type_of(service, fork.source)
        command = await _with_body(service, command, kind, body)
        return await service.node.lookup.of_fork(fork)

    return await service.node.lookup.propose(
        lambda verified: replace(command, finding=verified), find, len(body)
    )


async def _type_of(service: Service, key: bytes) -> str:
    """The content type that a fork inherits. Raises `Unavailable`."""
    await service.catch_up()
    source = await service.node.reads.stream(key)
    return DEFAULT_CONTENT_TYPE if source is None else source.content_type


async def _with_body(service: Service, command: Create, kind: str, body: bytes) -> Create:
    """The command with its initial records, split by the content type `kind`."""
    if not body:
        return command
    return _with_records(command, kind, await _cut(service, _records, kind, body))


def _with_records(command: Create, kind: str, records: Records) -> Create:
    return replace(command, data=records.data, lengths=records.lengths, cut_as=kind)


def _differing(command: Create, outcome: Outcome) -> str:
    """What differs between a stream and the PUT that would create it."""
    asked = command.settings.content_type
    if asked is None and command.settings.fork is None:
        asked = DEFAULT_CONTENT_TYPE
    if asked is not None and media_type(asked) != media_type(outcome.content_type):
        return f"its Content-Type is {outcome.content_type}"
    if command.closed != outcome.closed:
        return "it is closed" if outcome.closed else "it is open"
    return "its Stream-TTL, Stream-Expires-At, Write-Fence or the fork that was requested differs"


def _create_answer(
    request: Request, route: StreamRoute, command: Create, outcome: Outcome
) -> Response:
    asked = request.headers.get(IF_NONE_MATCH.key)
    if asked is not None and outcome.result in (Result.EXISTS, Result.SETTINGS_DIFFER):
        tag = state_tag(outcome.incarnation, outcome.tail.token(), outcome.closed)
        if named_tag(asked, tag) is not None:
            message = "the stream exists in a state that If-None-Match names"
            return _state_differs(outcome, message)
    match outcome.result:
        case Result.CREATED | Result.EXISTS:
            head = b"Content-Type: %b\r\n%b" % (
                outcome.content_type.encode(),
                _position(outcome),
            )
            if outcome.closed:
                head += _CLOSED
            if command.settings.write_fence:
                head += fenced_writes.FENCED
            if outcome.result is Result.EXISTS:
                return Response(200, head)
            return Response(201, head + location(request))
        case Result.PRECONDITION_FAILED:
            return precondition_failed(outcome, route)
        case Result.SETTINGS_DIFFER:
            differing = _differing(command, outcome)
            message = f"the stream exists with another configuration: {differing}"
            return error_response(Problem.STREAM_EXISTS, message)
        case Result.IN_USE_BY_FORKS:
            message = "a deleted stream of this name is kept for its forks"
            return error_response(Problem.STREAM_GONE_409, message)
        case Result.BUCKET_NOT_FOUND:
            return BUCKET_NOT_FOUND
        case Result.SOURCE_NOT_FOUND:
            return error_response(Problem.STREAM_NOT_FOUND, "Stream-Forked-From does not exist")
        case Result.SOURCE_GONE:
            return error_response(Problem.STREAM_GONE_409, "Stream-Forked-From was deleted")
        case Result.CONTENT_TYPE_DIFFERS:
            message = "Content-Type differs from the source's"
            return error_response(Problem.CONTENT_TYPE_MISMATCH, message)
        case Result.FORK_OFFSET_INVALID:
            message = "Stream-Fork-Offset is not an offset of the source"
            return error_response(Problem.INVALID_OFFSET, message)
        case Result.OFFSET_GONE:
            return offset_gone(outcome.earliest)
        case Result.FORK_SUB_OFFSET_INVALID:
            message = "Stream-Fork-Sub-Offset reaches past the append it starts in"
            return error_response(Problem.INVALID_OFFSET, message)
        case _:
            return quota_answer(outcome)


def location(request: Request) -> bytes:
    """The Location header line of the resource that a PUT made."""
    host = request.headers.get(b"host")
    if not host:
        return b"Location: %b\r\n" % request.path
    return b"Location: %b://%b%b\r\n" % (request.scheme, host, request.path)


def _is_cut_at_once(kind: str, body: bytes) -> bool:
    """Whether cutting a body into records takes no longer than a turn of the loop may: splitting
    millions of JSON messages there would block all clients and Raft's heartbeats."""
    return len(body) <= SMALL_BYTES or not is_json(kind)


async def _cut(
    service: Service, by: Callable[[str, bytes], Records], kind: str, body: bytes
) -> Records:
    """A body cut into records by `by`, in a thread if that takes long."""
    if _is_cut_at_once(kind, body):
        return by(kind, body)
    return await service.node.run_blocking(by, kind, body, limiter=service.splitting)


def _records(kind: str, body: bytes) -> Records:
    """A body as records. Raises `ProblemError`."""
    try:
        return split_body(kind, body)
    except InvalidJson as error:
        raise Problem.INVALID_JSON.error(f"the body is not JSON: {error}") from None
    except TooManyMessages:
        raise Problem.TOO_MANY_MESSAGES.error() from None


async def delete(service: Service, request: Request, route: StreamRoute) -> Response:
    """DELETE of a stream."""
    outcome = await service.node.group.writes.propose(Delete(route.key, if_match(request.headers)))
    match outcome.result:
        case Result.DELETED:
            return Response(204)
        case Result.PRECONDITION_FAILED | Result.BUCKET_NOT_FOUND:
            return precondition_failed(outcome, route)
        case Result.GONE:
            return GONE
        case _:
            return NOT_FOUND
