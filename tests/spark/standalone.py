"""A real standalone cluster of Spark on this machine: a master and a worker, each its own JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pyspark

from tests.support.ports import unused_port

_HOME = Path(pyspark.__file__).parent
_START_TIMEOUT_S = 180.0
_POLL_S = 0.1


class Standalone:
    """`url` is what ``--master`` takes."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self._directory = directory

    def submit(
        self, script: Path, arguments: Sequence[str], *, package: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of a job by ``spark-submit`` in a directory of its own, with nothing of this
        project but the package's zip."""
        command = [
            str(_HOME / "bin" / "spark-submit"),
            "--master", self.url,
            "--py-files", str(package),
            "--driver-memory", "1g",
            "--executor-memory", "1g",
            "--conf", "spark.driver.host=127.0.0.1",
            "--conf", "spark.ui.enabled=false",
            str(script),
            *arguments,
        ]  # fmt: skip
        return subprocess.run(
            command,
            env=_environment(self._directory),
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=600,
        )


@contextmanager
def standalone(directory: Path) -> Iterator[Standalone]:
    """Start a master and a worker with two cores; both are ended with the context."""
    port, web, worker_web = unused_port(), unused_port(), unused_port()
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    master = [
        f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port),
        "--webui-port", str(web),
    ]  # fmt: skip
    worker = [
        f"{deploy}.worker.Worker", url, "--host", "127.0.0.1", "--cores", "2", "--memory", "2g",
        "--webui-port", str(worker_web), "--work-dir", str(directory / "work"),
    ]  # fmt: skip
    with _daemon(directory, "master", master), _daemon(directory, "worker", worker):
        _wait_for_a_worker(web, directory)
        yield Standalone(url, directory)


@contextmanager
def _daemon(directory: Path, name: str, arguments: Sequence[str]) -> Iterator[None]:
    with open(directory / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [str(_HOME / "bin" / "spark-class"), *arguments],
            env=_environment(directory),
            cwd=directory,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment(directory: Path) -> Mapping[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {
        **kept,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
        "SPARK_LOCAL_DIRS": str(directory / "scratch"),
        "SPARK_DAEMON_MEMORY": "256m",
        # A worker hands what it finds to its executors.
        "SPARK_WORKER_DIR": str(directory / "work"),
    }


def _wait_for_a_worker(web_port: int, directory: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        found: Any = None
        try:
            with urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=5) as answer:
                found = json.load(answer)
        except (URLError, OSError, ValueError):
            pass
        if found and found.get("aliveworkers"):
            return
        if time.monotonic() > deadline:
            logs = "\n".join(path.read_text() for path in directory.glob("*.log"))
            raise AssertionError(f"the standalone cluster does not start:\n{logs}")
        time.sleep(_POLL_S)
