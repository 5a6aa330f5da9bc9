"""A MinIO of a benchmark's own, on fresh data."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minio import Minio
from minio.error import MinioException
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from bench.errors import RunFailed
from bench.process import free_port

BUCKET = "bench"
_KEYS = ("streamd-bench", "not-a-secret")
_START_S = 30.0


class ObjectStore:
    """A server with one bucket; `client` is the minio client for it."""

    def __init__(self, executable: Path, directory: Path) -> None:
        self._executable = executable
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.client = Minio(
            f"127.0.0.1:{self._port}", *_KEYS, secure=False, http_client=PoolManager(retries=False)
        )

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which programs that know S3 find it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ACCESS_KEY_ID": _KEYS[0],
            "AWS_SECRET_ACCESS_KEY": _KEYS[1],
            "AWS_REGION": "us-east-1",
        }

    @property
    def settings(self) -> dict[str, str]:
        """The keys of `[cold]` that lead here."""
        return {
            "backend": "s3",
            "s3_bucket": BUCKET,
            "s3_endpoint": f"http://127.0.0.1:{self._port}",
            "s3_access_key_id": _KEYS[0],
            "s3_secret_access_key": _KEYS[1],
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Raises `RunFailed` when it does not start."""
        command = [str(self._executable), "server", "--quiet"]
        command += ["--address", f"127.0.0.1:{self._port}", str(self._directory / "minio")]
        environment = {**os.environ, "MINIO_ROOT_USER": _KEYS[0], "MINIO_ROOT_PASSWORD": _KEYS[1]}
        with open(self._directory / "minio.log", "wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self._process = process
        try:
            self._make_bucket()
            yield
        finally:
            process.kill()
            process.wait()

    def run_on(self, cores: set[int]) -> None:
        """Let the server use these cores and no others; only while it is running."""
        assert self._process is not None
        for thread in Path(f"/proc/{self._process.pid}/task").iterdir():
            # One that has ended meanwhile needs no core.
            with suppress(OSError):
                os.sched_setaffinity(int(thread.name), cores)

    def _make_bucket(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.client.make_bucket(BUCKET)
                return
            except (MinioException, HTTPError) as error:
                if time.monotonic() > deadline:
                    raise RunFailed(f"minio does not start: {error}") from error
                time.sleep(0.2)
