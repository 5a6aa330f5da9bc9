"""README's lines for Spark, pasted into a fresh interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamd.client import Client
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

README = Path(__file__).parents[2] / "README.md"
PATIENCE_S = 300


def test_the_lines_for_spark_need_nothing_else(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(import os, sys\n.*?)```", README.read_text(), re.DOTALL)
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    with ServerProcess(tmp_path / "data") as server, Client(server.url) as client:
        runs, alerts = client.stream("agents/run-1"), client.stream("ops/alerts")
        for stream in (runs, alerts):
            stream.create("application/json")
        runs.append_json({"cost": 5}, {"cost": 12})
        names = f"url, path = {server.url!r}, {str(tmp_path / 'checkpoint')!r}\n"
        ended = "\nspark.streams.active[0].processAllAvailable()\nspark.stop()\n"
        subprocess.run(
            [sys.executable, "-c", names + code + ended],
            env=bare,
            cwd=tmp_path,
            check=True,
            timeout=PATIENCE_S,
        )
        assert list(alerts.read_json()) == [{"cost": 12}]
