"""Spark data sources over a cluster's folder in a cold store (docs/spark-cold-store.md)."""

from __future__ import annotations

from pyspark.sql import SparkSession

from streamd_audit.sources.log import LogSource
from streamd_audit.sources.manifests import ManifestsSource
from streamd_audit.sources.packs import PacksSource
from streamd_audit.sources.segments import SegmentsSource
from streamd_audit.sources.slices import SlicesSource
from streamd_audit.sources.source import BadOption, BucketSource, the_only_cluster
from streamd_audit.sources.state import StateSource

SOURCES: tuple[type[BucketSource], ...] = (
    LogSource,
    SegmentsSource,
    PacksSource,
    SlicesSource,
    ManifestsSource,
    StateSource,
)

__all__ = ["SOURCES", "BadOption", "register", "the_only_cluster"]


def register(spark: SparkSession) -> None:
    """Register the formats ``streamd_log``, ``streamd_segments``, ``streamd_packs``,
    ``streamd_slices``, ``streamd_manifests`` and ``streamd_state`` with a session."""
    # Spark refuses to plan with the option ``pushdown`` unless this is set.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    for source in SOURCES:
        spark.dataSource.register(source)
