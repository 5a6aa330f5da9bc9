"""The messages of a JSON stream: from where on, as which type, and with which positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from streamd.client.core import reading
from streamd.client.core.steps import Done, Emit, Flow, Lost, Raise, resume
from streamd.client.errors import MessageMismatch
from streamd.client.values import Chunk, decode
from streamd.streams.content import UNDECODABLE, json_elements


class Place:
    """Where a reader of messages is: an offset, and how many messages after it are not wanted.

    An append of several messages has one offset. A position in it is written `OFFSET,COUNT`, which
    no server sees; no offset has a comma (section 6 of the protocol).
    """

    def __init__(self, position: str) -> None:
        self.position = position
        self.offset, comma, count = position.partition(",")
        if comma and not (count.isascii() and count.isdigit()):
            raise ValueError(f"not the position of a message: {position!r}")
        self._skipped = int(count or 0)
        # The messages received last: the offset before them, how many messages after it
        # were left out, and how many there were in all.
        self._taken_from, self._left_out, self._taken = self.offset, 0, 0

    def take(self, chunk: Chunk, found: list[Any]) -> list[Any]:
        """Those of a chunk's messages that are wanted.

        Raises `StreamReplaced` if the stream ends before the position.
        """
        skipped = min(self._skipped, len(found))
        self._taken_from, self._left_out, self._taken = self.offset, self._skipped, len(found)
        self._skipped -= skipped
        if self._skipped and chunk.up_to_date:
            raise reading.replaced()
        self.offset = chunk.next_offset
        return found[skipped:] if skipped else found

    def after(self, index: int) -> str:
        """The position after one of the messages that were taken last."""
        count = self._left_out + index + 1
        return f"{self._taken_from},{count}" if count < self._taken else self.offset


class Form:
    """How messages are shown: as values of `kind`, or as JSON has them if it is None; with their
    positions if `offsets`. `stream` is the name that errors have.

    `kind` is any type that msgspec knows, or a class whose `model_validate` makes a value of what
    JSON has and raises `ValueError`, as those of pydantic do. Raises `TypeError` if it is neither.
    """

    def __init__(self, stream: str, kind: Any, offsets: bool) -> None:
        self.stream = stream
        self.offsets = offsets
        self._decode = None if kind is None else _decoder(kind)

    def items(self, chunk: Chunk) -> list[Any]:
        """The messages of a chunk, for `step`. Raises `ValueError`."""
        if self._decode is None:
            return chunk.json()
        return json_elements(chunk.data) if chunk.data else []

    def step(self, item: Any, place: Place, index: int) -> Emit | Raise:
        """What the caller gets of the message with this index among those that were taken last."""
        if self._decode is None:
            value = item
        else:
            try:
                value = self._decode(item)
            except ValueError as error:
                mismatch = MessageMismatch(self.stream, place.after(index), str(error), item)
                mismatch.__cause__ = error
                return Raise(mismatch)
        return Emit((place.after(index), value) if self.offsets else value)


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    """What makes a value of a message's text. It raises `ValueError`."""
    if hasattr(kind, "model_validate"):
        return lambda text: kind.model_validate(decode(text))
    decoder = msgspec.json.Decoder(kind)

    def decode_as_kind(text: bytes) -> Any:
        try:
            return decoder.decode(text)
        except msgspec.ValidationError:
            raise
        except UNDECODABLE:
            return msgspec.convert(decode(text), kind)  # such as lone surrogates

    return decode_as_kind


def messages(chunks: Flow[Any], place: Place, form: Form) -> Flow[None]:
    """Emit the JSON messages of the chunks that a flow emits."""
    result, failure = None, None
    while True:
        step = resume(chunks, result, failure)
        result = failure = None
        if isinstance(step, Done):
            return
        if isinstance(step, Emit):
            for index, item in enumerate(place.take(step.value, form.items(step.value))):
                yield form.step(item, place, index)
            continue
        try:
            result = yield step
        except Lost as lost:
            failure = lost
