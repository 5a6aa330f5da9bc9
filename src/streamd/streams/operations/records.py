"""Records of operations on the cluster in the state: made and changed by the log alone.

So each leader knows what the one before it began. A record is replaced only by its next version:
what a deposed leader, or an operator at the same time, made from an older one has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from streamd.streams import keys
from streamd.streams.commands import Outcome, RaiseLevel, RecordOperation, Result
from streamd.streams.model import Header
from streamd.streams.operations.model import Operation
from streamd.streams.tables import KeyValue

# How many operations are remembered, the latest ones. Applying the log depends on this number.
MAX_OPERATIONS = 100
_ANOTHER = "the cluster was restored or recovered: another cluster goes on from here"

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Operation)


class OperationRecords:
    """The records by id, always in memory. At most one of them, the last, has not ended.
    `version` is another object after each change."""

    def __init__(self, store: KeyValue) -> None:
        """Blocks for a read."""
        self.version = object()
        start, stop = keys.OPERATION, keys.end_of(keys.OPERATION)
        self._records = {
            keys.parse_id(row): _DECODER.decode(raw)
            for row, raw in store.scan(start, stop, limit=2 * MAX_OPERATIONS)
        }
        self._dirty: set[int] = set()

    @property
    def records(self) -> Mapping[int, Operation]:
        """All records by id, in the order in which they were begun."""
        return self._records

    @property
    def last_id(self) -> int:
        """The id of the latest operation; 0 if there was none."""
        return next(reversed(self._records), 0)

    @property
    def current(self) -> Operation | None:
        """The operation that has not ended."""
        last = self._records.get(self.last_id)
        return None if last is None or last.has_ended else last

    def put(self, operation: Operation) -> None:
        """Add or replace a record, and forget the oldest one if there are too many."""
        self._records[operation.operation_id] = operation
        self._dirty.add(operation.operation_id)
        if len(self._records) > MAX_OPERATIONS:
            oldest = next(iter(self._records))
            del self._records[oldest]
            self._dirty.add(oldest)
        self.version = object()

    def begin_flush(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The rows to store, as of now."""
        dirty, self._dirty = self._dirty, set()
        for operation_id in dirty:
            record = self._records.get(operation_id)
            raw = None if record is None else _ENCODER.encode(record)
            yield keys.OPERATION + keys.number(operation_id), raw


def record(operations: OperationRecords, command: RecordOperation) -> Outcome:
    """Take the first record of an operation, or the next version of the current one."""
    operation, current = command.operation, operations.current
    if operation.version > 1:
        is_next = current is not None and (operation.operation_id, operation.version) == (
            current.operation_id,
            current.version + 1,
        )
        if not is_next:
            return Outcome(Result.STALE)
    elif current is not None:
        return Outcome(Result.OPERATION_IN_PROGRESS)
    elif operation.operation_id != operations.last_id + 1:
        return Outcome(Result.STALE)
    operations.put(operation)
    return Outcome(Result.DONE)


def raise_features(header: Header, command: RaiseLevel) -> Outcome:
    """Raise the feature level, which never falls."""
    header.features = max(command.level, header.features)
    return Outcome(Result.DONE)


def abandon(operations: OperationRecords, now_ms: int) -> None:
    """End the current operation, if there is one: its members are those of another cluster."""
    current = operations.current
    if current is not None:
        abandoned = replace(
            current,
            version=current.version + 1,
            state="failed",
            why=_ANOTHER,
            changed_at_ms=now_ms,
            ended_at_ms=now_ms,
        )
        operations.put(abandoned)
