"""POST of several records in one body, each framed by its length: an extension of our own.

A JSON array does this for JSON streams; other types have no array. Frames exist in the request
only. Each payload is stored as if it had been posted by itself, but all of them together, one
after another, or none.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from streamd.http.protocol import fields
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.refusals import answer_to
from streamd.http.protocol.routing import BatchRoute
from streamd.http.streams.service import Service
from streamd.http.streams.writes import Write, append_answer, append_command, cut, stream_refusal
from streamd.node.foresight import SMALL_WRITE_BYTES
from streamd.protocol.headers import CONTENT_TYPE
from streamd.protocol.problems import Problem, ProblemError
from streamd.streams.commands import Append, Outcome, Result
from streamd.streams.content import InvalidJson, Records, is_json, json_message
from streamd.streams.offsets import Position

MAX_FRAMES = 512

_LENGTH = Struct(">I")
LENGTH_BYTES = _LENGTH.size
_ENCODER = msgspec.json.Encoder()


class BatchBody(msgspec.Struct):
    """The answer to a batch: the offsets of its first and last record, and the next one."""

    records: int
    first_offset: str
    last_offset: str
    next_offset: str


def begin_append_batch(request: Request, route: BatchRoute) -> Write | None:
    """POST of frames. Producers, Stream-Seq, If-Match and closing work as for any append.

    None leaves it to `append_batch`.
    """
    if len(request.body) > SMALL_WRITE_BYTES:
        return None
    kind = _kind(request)
    try:
        records = _framed_records(kind, request.body)
    except ProblemError:
        return None  # Errors of the stream come first, and it may have to be looked up.
    return write_batch(request, route, kind, records)


async def append_batch(service: Service, request: Request, route: BatchRoute) -> Response:
    """As `begin_append_batch`, for any body."""
    kind = _kind(request)
    try:
        records = await cut(service, _framed_records, kind, request.body)
    except ProblemError as unfit:
        return await stream_refusal(service, route.stream, kind) or answer_to(unfit)
    write = write_batch(request, route, kind, records)
    return write.answer(await service.node.foresight.propose(write.command, write.size))


def write_batch(request: Request, route: BatchRoute, kind: str, records: Records) -> Write:
    """The append of a request's records. Raises `ProblemError`."""
    command = append_command(request.headers, route.stream, kind, records)
    return Write(command, len(records.data), lambda outcome: _answer(command, outcome, route))


def _kind(request: Request) -> str:
    raw_type = request.headers.get(CONTENT_TYPE.key)
    if not raw_type:
        raise Problem.MISSING_CONTENT_TYPE.error("Content-Type is required: the payloads' type")
    return fields.content_type(raw_type)


def _answer(command: Append, outcome: Outcome, route: BatchRoute) -> Response:
    response = append_answer(command, outcome, route.stream)
    if outcome.result is Result.APPENDED:
        response.status = 200
        response.head += b"Content-Type: application/json\r\n"
        response.body = _ENCODER.encode(_add_offsets(response, command, outcome))
    elif outcome.result is Result.DUPLICATE and _is_the_last(command, outcome):
        _add_offsets(response, command, outcome)  # A duplicate is 204: headers only, no body.
    return response


def _payloads(body: bytes) -> list[bytes]:
    payloads: list[bytes] = []
    at = 0
    while at < len(body):
        start = at + _LENGTH.size
        if start > len(body):
            raise Problem.INVALID_FRAME.error(f"the length at byte {at} is cut off")
        (length,) = _LENGTH.unpack_from(body, at)
        if not length:
            raise Problem.INVALID_FRAME.error(f"the frame at byte {at} is empty")
        at = start + length
        if at > len(body):
            raise Problem.INVALID_FRAME.error(f"the body ends inside the frame at byte {start - 4}")
        if len(payloads) == MAX_FRAMES:
            raise Problem.TOO_MANY_FRAMES.error(f"a batch has at most {MAX_FRAMES} frames")
        payloads.append(body[start:at])
    if not payloads:
        raise Problem.EMPTY_BODY.error("a batch has at least one frame")
    return payloads


def _framed_records(kind: str, body: bytes) -> Records:
    """The payloads of a body's frames as records. For JSON each is one message, even an array.

    Raises `ProblemError`.
    """
    payloads = _payloads(body)
    if is_json(kind):
        for number, payload in enumerate(payloads):
            try:
                payloads[number] = json_message(payload)
            except InvalidJson as error:
                message = f"frame {number} is not one JSON message: {error}"
                raise Problem.INVALID_JSON.error(message) from None
    return Records(b"".join(payloads), [len(payload) for payload in payloads])


def _is_the_last(command: Append, outcome: Outcome) -> bool:
    """Whether a duplicate repeats the producer's last request, whose tail is remembered.

    The offsets are counted back from that tail, so a retry with other payloads than the first try
    gets the offsets that its own sizes give.
    """
    assert command.producer is not None
    before = outcome.tail.record - len(command.lengths), outcome.tail.byte - len(command.data)
    return command.producer.seq == outcome.seq and min(before) >= 0


def _add_offsets(response: Response, command: Append, outcome: Outcome) -> BatchBody:
    tail = outcome.tail
    begin = Position(tail.record - len(command.lengths), tail.byte - len(command.data))
    assert min(begin) >= 0, "the batch lies before the tail that it made"
    first = begin.token()
    last = Position(tail.record - 1, tail.byte - command.lengths[-1]).token()
    response.head += b"Stream-First-Offset: %b\r\nStream-Last-Offset: %b\r\n" % (first, last)
    return BatchBody(len(command.lengths), first.decode(), last.decode(), tail.token().decode())
