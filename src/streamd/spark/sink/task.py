"""One attempt at one partition: takes rows in, sends requests by the plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from streamd.client import Client
from streamd.spark.sink.errors import BadRow, NotWritten, RowsChanged
from streamd.spark.sink.plan import Entry, Journal, Part, Planned
from streamd.spark.sink.relocated import RelocatedRows
from streamd.spark.sink.sending import Sender
from streamd.spark.sink.settings import RECORD, STREAM, Settings
from streamd.spark.sink.targets import Targets
from streamd.spark.sink.unsent import UnsentRows

# How much is gathered before its requests are decided, and about how large a request is.
WINDOW_BYTES = 4 * 1024 * 1024
WINDOW_ROWS = 100_000
REQUEST_BYTES = 1024 * 1024


def write_part(batches: Iterator[pa.RecordBatch], settings: Settings, part: Part) -> int:
    """Append the rows of a partition, each once however often this is called. Returns how many
    rows were skipped because their streams are closed, which the settings allow.

    Raises `Fenced`, `RowsChanged`, `BadRow`, `NotWritten`, `StreamdError`.
    """
    with _connected(settings) as client:
        targets = Targets(client, settings)
        try:
            rows = _Rows(batches, targets, settings)
            return _Attempt(rows, targets, client, settings, part).run()
        except NotWritten:
            targets.forget()
            raise


class _Rows:
    """The rows of a partition, taken from Spark one by one."""

    def __init__(
        self, batches: Iterator[pa.RecordBatch], targets: Targets, settings: Settings
    ) -> None:
        self._batches = batches
        self._targets = targets
        self._stream = settings.stream
        self.held = UnsentRows()
        self.ended = False

    def gather(self) -> None:
        """Hold a window of rows, or all that remain."""
        held = self.held
        while not self.ended and held.bytes < WINDOW_BYTES and held.rows < WINDOW_ROWS:
            self.more()

    def more(self) -> None:
        """Hold another batch of rows, or learn that there are no more."""
        batch = next(self._batches, None)
        if batch is None:
            self.ended = True
            return
        by_stream = list(self._by_stream(batch))
        self._targets.find(name for name, _ in by_stream)
        for name, records in by_stream:
            if records.null_count:
                raise BadRow(f"a row for {name} has no {RECORD}: it is null")
            self.held.add(name, self._targets[name].records(records.to_pylist()))

    def _by_stream(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.BinaryArray]]:
        """The records of each stream in the batch, in their order."""
        records = batch.column(RECORD).cast(pa.binary())
        if self._stream is not None:
            yield self._stream, records
            return
        column = batch.column(STREAM)
        if column.null_count:
            raise BadRow(f"a row has no {STREAM}: it is null")
        streams = column.dictionary_encode()
        numbers = streams.indices.to_numpy()
        ordered = records.take(pa.array(np.argsort(numbers, kind="stable")))
        at = 0
        counts = np.bincount(numbers, minlength=len(streams.dictionary))
        for name, count in zip(streams.dictionary.to_pylist(), counts.tolist(), strict=True):
            yield name, ordered.slice(at, count)
            at += count


class _Attempt:
    def __init__(
        self,
        rows: _Rows,
        targets: Targets,
        client: Client,
        settings: Settings,
        part: Part,
    ) -> None:
        self._rows = rows
        self._targets = targets
        self._part = part
        self._journal = Journal(client, settings.journal, part)
        self._relocated = _relocated(client, settings, part)
        self._sender = Sender(
            client, part, parallel=settings.parallel, skip_closed=settings.skip_closed
        )

    def run(self) -> int:
        """Write the partition's rows, each once; returns how many were skipped."""
        self._rows.gather()
        if not self._rows.held.rows:
            return 0
        if self._relocated is not None and self._relocated.concerns(self._part):
            # Rows that were in this partition must not be looked for in the others.
            self._journal.read()
        with self._sender:
            number, is_last = 0, False
            while not is_last:
                entry = self._journal.known(number) or self._journal.decide(self._entry(number))
                for request in entry.requests:
                    records = self._records(request)
                    self._sender.send(self._targets[request.stream], records)
                number, is_last = number + 1, entry.last
            self._rows.gather()
            if self._rows.held.rows:
                raise self._changed(f"{self._rows.held.rows} or more rows came in addition")
            self._sender.finish()
        return self._sender.skipped

    def _entry(self, number: int) -> Entry:
        """What this attempt would do next: send everything that it holds."""
        self._rows.gather()
        held = self._rows.held
        most_rows = {name: self._targets[name].most_rows for name in held.streams}
        requests = [Planned(*cut) for cut in held.cut(REQUEST_BYTES, most_rows)]
        part = self._part
        if self._relocated is not None and self._relocated.concerns(part):
            self._relocated.check(requests, part)
        return Entry(part.epoch, number, part.run, part.attempt, self._rows.ended, requests)

    def _records(self, request: Planned) -> list[bytes]:
        """The records of a request, which may not have arrived yet."""
        while (records := self._rows.held.take(request.stream, request.digests)) is None:
            if self._rows.ended:
                raise self._changed(f"rows for {request.stream} did not come again")
            self._rows.more()
        return records

    def _changed(self, how: str) -> RowsChanged:
        part = self._part
        return RowsChanged(
            f"batch {part.epoch}, partition {part.partition}: {how}. The rows of a batch have to "
            "be the same each time it is run, in the same number of partitions"
        )


# Results of this worker process's look-ups, by run of a sink.
_MOST_LOOKS = 100
_looks: dict[tuple[str, str], RelocatedRows] = {}


def _relocated(client: Client, settings: Settings, part: Part) -> RelocatedRows | None:
    """What an earlier run has planned elsewhere; None if there cannot have been one."""
    if part.nameless or settings.same_partitions:
        return None
    key = part.sink_id, part.run
    look = _looks.get(key)
    if look is None:
        look = RelocatedRows(part)
        look.look(client, settings.journal)
        if len(_looks) == _MOST_LOOKS:
            _looks.clear()
        _looks[key] = look
    return look


_idle: dict[tuple[object, ...], Client] = {}


@contextmanager
def _connected(settings: Settings) -> Iterator[Client]:
    """A task's client, with its connections. The worker process keeps it for its next task."""
    key = settings.urls, settings.cacert, settings.token, settings.retry_for_s
    client = _idle.pop(key, None) or Client(
        settings.urls,
        verify=settings.cacert or True,
        token=settings.token,
        retry_for_s=settings.retry_for_s,
    )
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _idle[key] = client
