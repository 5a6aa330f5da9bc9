"""The formats as Spark knows them: each method calls the module that does the work."""

from __future__ import annotations

from pyspark.sql import types as T
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from streamd.spark import batch, live
from streamd.spark.catalog import asked, columns_of
from streamd.spark.options import Options, check_names
from streamd.spark.reading import request_of, schema_of
from streamd.spark.sink.writers import BatchWriter, StreamWriter
from streamd_audit.one_line import one_line


@one_line
class StreamdSource(DataSource):
    """``format("streamd")``: streams read and written, in batch and live."""

    @classmethod
    def name(cls) -> str:
        return "streamd"

    def schema(self) -> T.StructType:
        return columns_of(self.options, self.name(), _inferred)

    def reader(self, schema: T.StructType) -> DataSourceReader:
        return batch.BatchReader(asked(self.options, schema), schema)

    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:
        return live.StreamReader(asked(self.options, schema), schema)

    def writer(self, schema: T.StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: T.StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self.options, schema, overwrite=overwrite)


def _inferred(options: Options) -> T.StructType:
    check_names(options, {*batch.OPTIONS, *live.OPTIONS}, "format('streamd')")
    return schema_of(request_of(options))
