"""The Spark session that the jobs and notebooks of this project run in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Jobs run for minutes, and their hot code is Python: the second compiler of the JVM took half
    # of its processor time, for code that then ran a few times. Without what
    # the default collector does beside the program, a tenth less was measured.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC",
}

_NEEDS = "Spark needs Java 17 or newer"


class SparkMissing(Exception):
    """Spark cannot start on this machine; the message is one line that says what to install."""


def spark_session(name: str, master: str | None = None) -> SparkSession:
    """The active session, or a new one: UTC, a quiet log, filters pushed to the data sources.

    Without `master` it is the one that `spark-submit` names, or ``local[*]``. Raises
    `SparkMissing` when there is no Java, or one that is too old.
    """
    java = _java()
    # Workers run this interpreter, which has the packages, not the machine's `python3`.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
    builder = SparkSession.Builder().appName(f"streamd {name}")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise SparkMissing(f"{_NEEDS}: {java} is {_version(java)}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def _java() -> str:
    """Where Spark looks for Java. Raises `SparkMissing` when there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if found is None:
        where = f"there is none in JAVA_HOME={home}" if home else "install it, or set JAVA_HOME"
        raise SparkMissing(f"{_NEEDS}: {where}")
    return found


def _version(java: str) -> str:
    """The first line of its version output."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not to be run ({error})"
    return (told.stderr or told.stdout).strip().partition("\n")[0] or "silent"
