"""``spark.read.format("streamd")``: the streams' content when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceReader, InputPartition

from streamd.spark import options as given
from streamd.spark.columns import Columns
from streamd.spark.options import Options
from streamd.spark.planning import Part, plan
from streamd.spark.reading import COMMON, NOW, Edge, batches, edge_of, ranges, request_of, verified
from streamd.spark.streams import Described, Streams
from streamd.streams.offsets import START, Position
from streamd_audit.one_line import one_line

OPTIONS = (*COMMON, "starting_offset", "ending_offset")


@one_line
class BatchReader(DataSourceReader):
    """Each task reads some ranges of records."""

    def __init__(self, options: Options, schema: T.StructType) -> None:
        given.check_names(options, OPTIONS, "spark.read.format('streamd')")
        self._request = request_of(options)
        self._columns = Columns(schema, failfast=self._request.failfast)
        self._starting = edge_of(options, "starting_offset", ("-1",), self._request.which)
        self._ending = edge_of(options, "ending_offset", (NOW,), self._request.which)

    def partitions(self) -> Sequence[InputPartition]:
        streams = self._request.place.open()
        found = [
            (
                each._replace(tail=self._edge(streams, each, self._ending, "ending_offset")),
                self._edge(streams, each, self._starting, "starting_offset"),
            )
            for each in self._request.which.described(streams)
        ]
        return plan(streams, ranges(found), self._request.partition_bytes) or [Part(0, [])]

    def _edge(self, streams: Streams, each: Described, edge: Edge, option: str) -> Position:
        at = edge.offsets.get(each.name)
        if at is None:
            return each.tail if edge.word == NOW else START
        return verified(streams, each.name, at, option)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return batches(self._request, self._columns, partition)
