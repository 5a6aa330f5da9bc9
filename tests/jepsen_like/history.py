"""The operations of clients and their answers: one JSON line per operation.

A line is written when its operation returns, with one `write` to a file opened for appending, so
threads, tasks and processes may share a file. Times are CLOCK_MONOTONIC nanoseconds, which all
processes of a machine share; a simulation passes its own clock.

Bytes stand in the file as text with one character per byte (Latin-1): nothing is lost, and
payloads of plain ASCII can be read and searched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

Kind = Literal["create", "append", "close", "delete", "read", "head", "deliver", "final_read"]
Outcome = Literal["ok", "fail", "unknown"]

# Refusals from which the checker draws conclusions; any other word is only shown.
CLOSED = "closed"
NOT_FOUND = "not-found"
STALE_EPOCH = "stale-epoch"
# In the reason for an unknown outcome: the node itself said that it does not know.
UNKNOWN = "OUTCOME_UNKNOWN"


class Stamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An idempotent producer's stamp on an append."""

    producer: str
    epoch: int
    seq: int


class Operation(msgspec.Struct, omit_defaults=True, gc=False):
    """One line of a history. Fields that an operation does not have keep their defaults."""

    client: str
    kind: Kind
    invoked_ns: int
    returned_ns: int
    outcome: Outcome
    stream: str
    # Counts the lives of one path: 0, and one more for each creation after a deletion.
    incarnation: int = 0
    # The body of a create, append or close.
    payload: str = ""
    closes: bool = False
    stamp: Stamp | None = None
    # Where the client stood: an offset, "-1" for the start, "now" for the tail.
    offset: str = ""
    node: str = ""
    # The answer.
    data: str = ""
    next_offset: str = ""
    up_to_date: bool = False
    closed: bool = False
    # A retry was recognised, or a create found its stream: no effect of its own.
    duplicate: bool = False
    refusal: str = ""


class Pending:
    """An operation that was invoked; it ends as `ok`, `fail` or, by default, `unknown`."""

    __slots__ = ("_recorder", "operation")

    def __init__(self, recorder: Recorder, operation: Operation) -> None:
        self._recorder = recorder
        self.operation = operation

    def ok(
        self,
        *,
        data: bytes = b"",
        next_offset: str = "",
        up_to_date: bool = False,
        closed: bool = False,
        duplicate: bool = False,
    ) -> None:
        """The server answered that it is done."""
        operation = self.operation
        operation.data = data.decode("latin-1")
        operation.next_offset = next_offset
        operation.up_to_date = up_to_date
        operation.closed = closed
        operation.duplicate = duplicate
        self._recorder._returned(self, "ok")

    def fail(self, refusal: str) -> None:
        """It certainly had no effect and never will; `refusal` says why."""
        self.operation.refusal = refusal
        self._recorder._returned(self, "fail")

    def unknown(self, reason: str = "") -> None:
        """It may have taken effect, or may do so later. Its client id must not be used again."""
        self.operation.refusal = reason
        self._recorder._returned(self, "unknown")

    def __enter__(self) -> Pending:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._recorder.is_pending(self):
            self.unknown("" if exc is None else repr(exc))


class Recorder:
    """Appends operations to a history file. Safe to share between threads and tasks.

    Raises OSError when the file cannot be opened or written.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._now_ns = now_ns
        self._encoder = msgspec.json.Encoder()
        self._pending: dict[int, Pending] = {}

    def invoke(
        self,
        client: str,
        kind: Kind,
        stream: str,
        incarnation: int = 0,
        *,
        payload: bytes = b"",
        closes: bool = False,
        stamp: Stamp | None = None,
        offset: str = "",
        node: str = "",
    ) -> Pending:
        """The client is about to send this request. To be called before its first byte leaves."""
        operation = Operation(
            client=client,
            kind=kind,
            invoked_ns=self._now_ns(),
            returned_ns=0,
            outcome="unknown",
            stream=stream,
            incarnation=incarnation,
            payload=payload.decode("latin-1"),
            closes=closes,
            stamp=stamp,
            offset=offset,
            node=node,
        )
        pending = Pending(self, operation)
        self._pending[id(pending)] = pending
        return pending

    def is_pending(self, pending: Pending) -> bool:
        """Whether the operation has not returned yet."""
        return id(pending) in self._pending

    def close(self) -> None:
        """Write operations that have not returned as unknown, and close the file."""
        for pending in list(self._pending.values()):
            pending.unknown("the run ended")
        os.close(self._file)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _returned(self, pending: Pending, outcome: Outcome) -> None:
        if self._pending.pop(id(pending), None) is None:
            raise RuntimeError("the operation has returned already")
        operation = pending.operation
        operation.returned_ns = self._now_ns()
        operation.outcome = outcome
        line = self._encoder.encode(operation) + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError("the history was not written in full")


def load(paths: Iterable[Path]) -> list[Operation]:
    """All operations of some files. Raises OSError and msgspec.DecodeError."""
    decoder = msgspec.json.Decoder(Operation)
    return [operation for path in paths for operation in decoder.decode_lines(path.read_bytes())]


def save(path: Path, operations: Iterable[Operation]) -> None:
    """Writes a history as a recorder would have."""
    path.write_bytes(msgspec.json.Encoder().encode_lines(list(operations)))
