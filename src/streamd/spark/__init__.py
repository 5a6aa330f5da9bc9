"""Streams as DataFrames: ``format("streamd")`` and ``format("streamd_materialized")``.

Spark finds the data sources in `source` and `materialized` by name. The driver plans: `options`
checks what the user gave, `reading` decides whether to read servers or a cold store, `planning`
cuts streams into ranges of offsets, so that many tasks read one large stream. Each task reads its
ranges: `remote` from servers through `streamd.client`, `stored` from packs and the newest
checkpoint without any server. `values` and `columns` turn records into Arrow columns. `live` keeps
the protocol's offsets in a query's checkpoint; `catalog` the options of tables; `sink` writes rows
back.

Invariants:

- A partition names fixed offsets, so a task that runs twice reads the same records.
- A stream that was deleted and created again has another incarnation: the two are never mixed.
- Positions come from the server or from stored lengths; no record is found by counting bytes.
- The sink records in a journal stream what a partition will write before it writes it, so that a
  repeated task, a speculative twin and a restarted driver append nothing twice.

docs/spark-streams.md is the users' page; decisions 011, 012 and 032 say why the sink keeps a
journal, why filters are pushed on demand, and where options and metrics are that Spark drops.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from streamd.spark.materialized import MaterializedSource
from streamd.spark.source import StreamdSource


def register(spark: SparkSession) -> None:
    """Register the formats with a session: once for each, before they are used."""
    spark.dataSource.register(StreamdSource)
    spark.dataSource.register(MaterializedSource)
