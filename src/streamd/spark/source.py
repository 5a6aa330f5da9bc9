"""What Spark knows of the formats: each method leads to the module that does it."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from streamd.spark.sink.writers import BatchWriter, StreamWriter


class StreamdSource(DataSource):
    """``format("streamd")``: streams read and written, in batch and live."""

    @classmethod
    def name(cls) -> str:
        return "streamd"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self.options, schema, overwrite=overwrite)
