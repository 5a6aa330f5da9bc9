"""The operations on a cluster, as its log records them (docs/formats.md): which record a state has
of each. What an operation is about makes no difference to it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from streamd_audit.operations import Operation
from streamd_audit.replay.results import DONE, INVALID, OPERATION_IN_PROGRESS, STALE

_MAX_OPERATIONS = 100
_MAX_STEPS, _MAX_ADDRESSES, _MAX_WINDOW_MS = 64, 16, 600_000
_MAX_TEXT_BYTES, _MAX_WEIGHT_BYTES, _NUMBERS_BYTES = 500, 32 * 1024, 64
_ENDED = frozenset(("done", "failed", "cancelled"))
_ANOTHER = "the cluster was restored or recovered: another cluster goes on from here"


class Operations:
    """Follows the records of a group."""

    def __init__(self) -> None:
        self.records: dict[int, Operation] = {}

    def record(self, operation: Operation) -> str:
        """The outcome of a record: it is taken if it is within the limits and the next one."""
        if not _fits(operation):
            return INVALID
        last = self.records.get(max(self.records, default=0))
        current = None if last is None or last.state in _ENDED else last
        if operation.version > 1:
            wanted = current and (current.operation_id, current.version + 1)
        elif current is not None:
            return OPERATION_IN_PROGRESS
        else:
            wanted = (1 if last is None else last.operation_id + 1), 1
        if (operation.operation_id, operation.version) != wanted:
            return STALE
        self.records[operation.operation_id] = operation
        if len(self.records) > _MAX_OPERATIONS:
            del self.records[min(self.records)]
        return DONE

    def abandon(self, log_ms: int) -> None:
        """End the current one: the state became another cluster's."""
        last = self.records.get(max(self.records, default=0))
        if last is not None and last.state not in _ENDED:
            self.records[last.operation_id] = replace(
                last,
                version=last.version + 1,
                state="failed",
                why=_ANOTHER,
                changed_at_ms=log_ms,
                ended_at_ms=log_ms,
            )


def _fits(operation: Operation) -> bool:
    arguments, texts = operation.arguments, [len(text.encode()) for text in _texts(operation)]
    return (
        min(operation.operation_id, operation.version, len(operation.steps)) > 0
        and len(operation.steps) <= _MAX_STEPS
        and 0 <= operation.current <= len(operation.steps)
        and len(arguments.addresses) <= _MAX_ADDRESSES
        and 0 <= arguments.window_ms <= _MAX_WINDOW_MS
        and max(texts) <= _MAX_TEXT_BYTES
        and sum(texts) + _NUMBERS_BYTES * (2 + len(operation.steps)) <= _MAX_WEIGHT_BYTES
    )


def _texts(operation: Operation) -> Iterator[str]:
    arguments = operation.arguments
    yield from (operation.requested_by, operation.why, arguments.release, *arguments.addresses)
    for record in operation.steps:
        yield from (record.note, record.step.address, record.step.release)
