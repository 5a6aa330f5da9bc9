"""The session that jobs run in."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.long


def test_times_are_shown_in_utc(spark: SparkSession) -> None:
    (row,) = spark.sql("select cast(timestamp_millis(0) as string) as t").collect()
    assert row.t == "1970-01-01 00:00:00"
