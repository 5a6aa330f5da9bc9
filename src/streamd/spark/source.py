"""What Spark knows of the formats: each method leads to the module that does it."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class StreamdSource(DataSource):
    """``format("streamd")``: streams read and written, in batch and live."""

    @classmethod
    def name(cls) -> str:
        return "streamd"
