"""The Spark session that the jobs and notebooks of this project run in."""

from __future__ import annotations

import os
import shutil
import sys

from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


class SparkMissing(Exception):
    """Spark cannot start on this machine; the message is one line that says what to install."""


def spark_session(name: str, master: str | None = None) -> SparkSession:
    """The active session, or a new one: UTC, a quiet log, filters pushed to the data sources.

    Without `master` it is the one that `spark-submit` names, or ``local[*]``. Raises
    `SparkMissing` when there is no Java.
    """
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise SparkMissing("Spark needs Java 17 or newer: install it, or set JAVA_HOME")
    # Workers run this interpreter, which has the packages, not the machine's `python3`.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
    builder = SparkSession.Builder().appName(f"streamd {name}")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
