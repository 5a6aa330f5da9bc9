"""Appends that are safe to repeat: each body has a producer's number (section 5.2.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamd.client.names import StreamName
from streamd.client.transport import Answer, ApiError, Server
from streamd.headers import CONTENT_TYPE, PRODUCER_EPOCH, PRODUCER_ID, PRODUCER_SEQ, STREAM_CLOSED
from streamd.streams.content import InvalidJson, is_json, json_value


class NotJson(Exception):
    """A line for a JSON stream is not a JSON value."""


def metadata(server: Server, stream: StreamName) -> Mapping[str, str]:
    """The headers of the answer to HEAD. Raises `ApiError`, `Unreachable`."""
    try:
        return server.ask("HEAD", stream.path).headers
    except ApiError:
        # An answer to HEAD has no body; GET says why.
        server.ask("GET", stream.path, params={"offset": "now"})
        raise


class Producer:
    """Appends to one stream in order, each body exactly once however often it is sent.

    A later epoch takes the id over from the run that used it before. Take `epoch` from a clock:
    with the epoch of an earlier run, our first append would pass for a repetition of its first.
    """

    def __init__(
        self, server: Server, stream: StreamName, content_type: str, name: str, epoch: int
    ) -> None:
        self._server = server
        self._stream = stream
        self._content_type = content_type
        self._name = name
        self._epoch = epoch
        self._seq = 0

    def append(self, body: bytes, *, close: bool = False) -> Answer:
        """Append, and close the stream with it. Raises `ApiError`, `Unreachable`."""
        assert body or close, "an append brings something (protocol section 5.2)"
        while True:
            try:
                answer = self._send(body, close)
            except ApiError as refusal:
                if not self._may_take_over(refusal):
                    raise
                self._epoch = int(refusal.headers[PRODUCER_EPOCH]) + 1
            else:
                self._seq += 1
                return answer

    def _may_take_over(self, refusal: ApiError) -> bool:
        # Only before our first append: a later 403 means that another run took over from us.
        return refusal.status == 403 and self._seq == 0 and PRODUCER_EPOCH in refusal.headers

    def _send(self, body: bytes, close: bool) -> Answer:
        headers: dict[str, str] = {
            PRODUCER_ID: self._name,
            PRODUCER_EPOCH: str(self._epoch),
            PRODUCER_SEQ: str(self._seq),
        }
        if body:
            headers[CONTENT_TYPE] = self._content_type
        if close:
            headers[STREAM_CLOSED] = "true"
        return self._server.ask("POST", self._stream.path, headers=headers, body=body)


def bodies_of_lines(batches: Iterator[list[bytes]], content_type: str) -> Iterator[bytes]:
    """Turn batches of lines into bodies: in a JSON stream each line is a message, elsewhere the
    lines are sent unchanged. Raises `NotJson`.
    """
    if not is_json(content_type):
        for batch in batches:
            yield b"".join(batch)
        return
    number = 0
    for batch in batches:
        messages = []
        for line in batch:
            number += 1
            if message := line.strip():
                messages.append(_checked(message, number))
        if messages:
            yield b"[" + b",".join(messages) + b"]"


def _checked(message: bytes, number: int) -> bytes:
    """Check that a line is one JSON value, which cannot break out of the array around it."""
    try:
        json_value(message)
    except InvalidJson as error:
        raise NotJson(f"line {number} is not JSON: {error}") from None
    return message
