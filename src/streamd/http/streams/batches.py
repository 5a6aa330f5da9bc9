"""POST of several records in one body, each framed by its length: an extension of our own.

A JSON array does this for JSON streams; other types have no array. Frames exist in the request
only. Each payload is stored as if it had been posted by itself, but all of them together, one
after another, or none.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.routing import BatchRoute
from streamd.http.streams.writes import AppendForm, append_answer, content_type
from streamd.protocol.problems import Problem
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


def _content_type(request: Request) -> str:
    return content_type(request, "Content-Type is required: the payloads' type")


def _answer(route: BatchRoute, command: Append, outcome: Outcome) -> Response:
    response = append_answer(route.stream, command, outcome)
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


# POST of frames. Producers, Stream-Seq, If-Match and closing work as for any append.
BATCH = AppendForm(_content_type, _framed_records, lambda route: route.stream, _answer)
