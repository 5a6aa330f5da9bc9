"""Server processes with a cold store in the real MinIO, its limits small enough to be reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.objectstore.conftest import s3_store
from tests.objectstore.nodes.ledger import Ledger
from tests.objectstore.nodes.verdict import Verdict, judge
from tests.support.minio import MinioServer
from tests.support.s3_proxy import S3Proxy
from tests.support.server_process import ServerProcess

# Whether to take each step, instead of a few that represent the others.
ALL = os.environ.get("COLD_STEPS") == "all"
PACK_BYTES = 64 * 1024
REQUEST_TIMEOUT_S = 1.0
PREFIX = "fault/tests/"
_POLL_S = 0.03
_BOUND_S = 40.0


def cold_environment(
    minio: MinioServer, bucket: str, endpoint: str, **more: float
) -> dict[str, str]:
    """The configuration of a node's cold store; `more` are keys of the section."""
    keys: dict[str, object] = {
        "backend": "s3",
        "s3_bucket": bucket,
        "s3_endpoint": endpoint,
        "s3_access_key_id": minio.access_key_id,
        "s3_secret_access_key": minio.secret_access_key,
        "s3_prefix": PREFIX,
        "timeout_ms": round(REQUEST_TIMEOUT_S * 1000),
        "pack_bytes": PACK_BYTES,
        "flush_after_ms": 100,
        # Flushed bytes are evicted as soon as possible, so that reads are cold.
        "hot_keep_bytes": 1,
        "gc_interval_ms": 200,
        "gc_grace_ms": 500,
        # A restore point is removed as soon as there is a newer one, which is soon.
        "archive_retention_hours": 0.0001,
        "snapshot_interval_minutes": 0.01,
        **more,
    }
    return {f"STREAMD_COLD_{name.upper()}": str(value) for name, value in keys.items()}


def wait_until(condition: Callable[[], bool], what: str, bound_s: float = _BOUND_S) -> None:
    """Poll until something is so. Raises AssertionError naming it when time has run out."""
    deadline = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {bound_s:g} s: {what}"
        time.sleep(_POLL_S)


def look(url: str) -> dict[str, Any] | None:
    """The status of a node's cold store, or None if it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/cluster/cold", timeout=5) as response:
            found: dict[str, Any] = json.load(response)
            return found
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise  # An internal error is an answer.
        return None
    except OSError:
        return None


def command(url: str, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run ``streamd cold`` as an operator would."""
    return subprocess.run(
        [sys.executable, "-m", "streamd", "cold", "--url", url, *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


class ColdServer:
    """A single node that reaches its store through a proxy; it may be killed and started again."""

    def __init__(
        self, minio: MinioServer, bucket: str, proxy: S3Proxy, data_dir: Path, **more: float
    ) -> None:
        self._minio = minio
        self._bucket = bucket
        self.proxy = proxy
        self.data_dir = data_dir
        self.environment = cold_environment(minio, bucket, proxy.endpoint, **more)
        self.ledger = Ledger()
        self._leaving: list[tuple[int, Ledger]] = []
        self._passing = 0
        self.process: ServerProcess | None = None
        self._port: int | None = None
        self.output = ""

    @property
    def port(self) -> int:
        assert self._port is not None
        return self._port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = ServerProcess(self.data_dir, environment=self.environment, port=self._port)
        self._port = self.process.port
        self.process.start()
        self.process.wait_ready()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.output += self.process.output
            self.process = None

    def stop(self) -> None:
        """Stop it gracefully, so that its state is on disk."""
        assert self.process is not None
        assert self.process.stop() == 0, self.process.output
        self.output += self.process.output
        self.process = None
        assert "Traceback" not in self.output, self.output

    def wait_only_cold(self) -> None:
        """Wait until flushed bytes are only in the store, not even in memory."""
        self.wait_cold()
        self.stop()
        self.start()

    def look(self) -> dict[str, Any]:
        """The status of its cold store; it must answer."""
        found = look(self.url)
        assert found is not None
        return found

    def wait_drained(self) -> None:
        """Wait until everything is in the store."""
        wait_until(lambda: bool(self.look()["hot_bytes"] == 0), "everything is in the store")

    def wait_cold(self) -> None:
        """Wait until flushed bytes are only in the store."""
        self.wait_drained()
        wait_until(lambda: bool(self.look()["local_bytes"] == 0), "only the store has the bytes")

    def wait_archived(self) -> None:
        """Wait until the archive has all that was acknowledged by now."""
        wanted = self.look()["archive"]["archived_index"] + self.look()["archive"]["lag_entries"]
        wait_until(
            lambda: bool(self.look()["archive"]["archived_index"] >= wanted), "all is archived"
        )

    def keep_writing_until(self, condition: Callable[[], bool]) -> None:
        """Append and delete a little until something is so."""

        def is_so() -> bool:
            self.churn(5)
            return condition()

        wait_until(is_so, "what was written for", 2 * _BOUND_S)

    def churn(self, appends: int = 40) -> None:
        """Append to streams that stay, and to one that is deleted once its bytes are in the store:
        deleted earlier, it would leave nothing there to remove."""
        self.ledger.write(self.port, appends)
        self._passing += 1
        passing = Ledger(self._passing, 1, bucket=f"passing{self._passing}")
        # More than half of a pack, so that it becomes sparse.
        passing.write(self.port, appends * 3)
        found = self.look()
        self._leaving.append((found["flushed_bytes"] + found["hot_bytes"], passing))
        found = self.look()
        for leaving in list(self._leaving):
            flushed_at, passed = leaving
            if not found["hot_bytes"] or flushed_at <= found["flushed_bytes"]:
                self._leaving.remove(leaving)
                for path in list(passed.streams):
                    passed.delete(self.port, path)

    def judge(self) -> Verdict:
        """Compare the state of the stopped server with what the store has (I7)."""
        assert self.process is None
        store = s3_store(self._minio, self._bucket, prefix=PREFIX)
        try:
            return judge(self.data_dir, store)
        finally:
            store.close()

    def __enter__(self) -> ColdServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        # Shown only for a test that failed.
        print(self.output[-6000:])
