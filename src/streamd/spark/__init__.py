"""Streams as DataFrames: ``format("streamd")`` and ``format("streamd_materialized")``.

`options` reads what the user gave; `source` holds the data sources by which Spark finds the
rest. They talk to servers through `streamd.client.transport`.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from streamd.spark.materialized import MaterializedSource
from streamd.spark.source import StreamdSource


def register(spark: SparkSession) -> None:
    """Make the formats known to a session: once for each, before they are used."""
    spark.dataSource.register(StreamdSource)
    spark.dataSource.register(MaterializedSource)
