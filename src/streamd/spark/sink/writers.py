"""The sink as Spark knows it. Writers are made on the driver and sent to the tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from streamd.spark.options import BadOption, Options
from streamd.spark.sink.plan import Part
from streamd.spark.sink.settings import batch_settings, stream_settings
from streamd.spark.sink.task import write_part
from streamd_audit.one_line import one_line

# Local properties of a micro-batch's tasks: Spark's `StreamExecution.QUERY_ID_KEY`, kept in the
# checkpoint, `MicroBatchExecution.BATCH_ID_KEY`, and the run, by which jobs are cancelled.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"


@dataclass
class Written(WriterCommitMessage):
    """The result of a partition."""

    epoch: int
    skipped: int


@one_line
class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("streamd")``."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        """Raises `BadOption`."""
        if overwrite:
            raise BadOption("a stream can only be appended to: use mode('append')")
        self._settings = batch_settings(options, schema)
        self._run = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition; Spark calls it in a worker, maybe more than once."""
        context = _context()
        sink_id, epoch = self._settings.sink_id, self._settings.epoch
        # In `foreachBatch` it is the run of the query.
        run = self._run if context.getLocalProperty(_QUERY_ID) is None else _run_of(context)
        part = Part(
            sink_id or self._run,
            context.partitionId(),
            epoch,
            run,
            uuid4().hex,
            nameless=sink_id is None,
        )
        return Written(epoch, write_part(iterator, self._settings, part))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell_skipped(messages)


@one_line
class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("streamd")``."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        """Raises `BadOption`."""
        if overwrite:
            raise BadOption(
                "a stream can only be appended to: use outputMode('append') or 'update'"
            )
        self._settings = stream_settings(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition; Spark calls it in a worker, maybe more than once."""
        context = _context()
        query_id = context.getLocalProperty(_QUERY_ID)
        batch_id = context.getLocalProperty(_BATCH_ID)
        if query_id is None or batch_id is None:
            raise RuntimeError("Spark does not say which query and batch this task belongs to")
        epoch = int(batch_id)
        part = Part(query_id, context.partitionId(), epoch, _run_of(context), uuid4().hex)
        return Written(epoch, write_part(iterator, self._settings, part))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # The tasks' epochs fenced their rows.
        for message in messages:
            assert isinstance(message, Written)
            assert message.epoch == batchId, f"{message.epoch} is not {batchId}"
        _tell_skipped(messages)


def _tell_skipped(messages: Sequence[WriterCommitMessage | None]) -> None:
    skipped = sum(message.skipped for message in messages if isinstance(message, Written))
    if skipped:
        print(f"streamd: skipped {skipped} rows for streams that are closed", file=sys.stderr)


def _run_of(context: TaskContext) -> str:
    run = context.getLocalProperty(_RUN_ID)
    if run is None:
        raise RuntimeError("Spark does not say which run of a query this task belongs to")
    return str(run)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "writers write in tasks"
    return context
