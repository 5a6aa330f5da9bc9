"""What a snapshot of a stream of state holds: every entity, of whatever type, as one event.

It is an array of State Events, so a reader applies it as it applies messages: `snapshot-start` with
the offset that it replaces, an insert for each entity, `snapshot-end`. Values are the JSON that was
sent. Advisory fields are left out, and so are messages that are not State Events.
"""

from __future__ import annotations

from msgspec import UNSET, Raw

from streamd.state.events import (
    ChangeHeaders,
    ControlEvent,
    MalformedEvent,
    RawChangeEvent,
    control,
    decode_raw_batch,
    encode_event,
)

_INSERT = ChangeHeaders("insert")


class Summary:
    """All entities of a stream.

    `events` counts the messages that were applied, `size` the bytes of the entities' values and
    keys.
    """

    def __init__(self) -> None:
        self.events = self.size = 0
        self._values: dict[tuple[str, str], bytes] = {}

    def apply(self, array: bytes) -> int:
        """Apply the messages of a read, or a snapshot; returns how many are not State Events.

        Raises `ValueError` if it is not a JSON array.
        """
        malformed = 0
        for event in decode_raw_batch(array):
            self.events += 1
            if isinstance(event, MalformedEvent):
                malformed += 1
            elif isinstance(event, ControlEvent):
                if event.headers.control == "reset":
                    self._values.clear()
                    self.size = 0
            elif event.headers.operation == "delete":
                self._put((event.type, event.key), None)
            elif event.value is not UNSET:
                self._put((event.type, event.key), bytes(event.value))
        return malformed

    def _put(self, entity: tuple[str, str], value: bytes | None) -> None:
        old = self._values.get(entity)
        if old is not None:
            self.size -= len(old) + len(entity[1])
        if value is not None:
            self.size += len(value) + len(entity[1])
            self._values[entity] = value
        elif old is not None:
            del self._values[entity]

    def equals(self, other: Summary) -> bool:
        """Whether both have the same entities, with the same JSON."""
        return self._values == other._values

    def snapshot(self, offset: str) -> bytes:
        """The snapshot of the stream before `offset`."""
        inserts = [
            encode_event(RawChangeEvent(type_, key, _INSERT, Raw(text)))
            for (type_, key), text in self._values.items()
        ]
        start, end = (
            encode_event(control("snapshot-start", offset=offset)),
            encode_event(control("snapshot-end", offset=offset)),
        )
        return b"[" + b",\n".join([start, *inserts, end]) + b"]"
