"""Names that operators' programs read stay: the keys of answers, and the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.releases.record import CONFIG, HERE
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

ANSWERS = ("/cluster/status", "/cluster/cold")


def keys(answer: Any, prefix: str) -> Iterator[str]:
    """The paths of all keys in a JSON answer, as `/cluster/cold.gc.total.deleted_packs`."""
    if isinstance(answer, dict):
        for key, value in answer.items():
            yield f"{prefix}.{key}"
            yield from keys(value, f"{prefix}.{key}")


def test_no_key_and_no_metric_of_a_release_is_missing(tmp_path: Path) -> None:
    config = tmp_path / "streamd.toml"
    config.write_text(CONFIG)
    with (
        ServerProcess(tmp_path / "data", flags=("--config", str(config))) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        found = {key for path in ANSWERS for key in keys(client.get(path).json(), path)}
        metrics = client.get("/metrics").text.splitlines()
        found |= {line.split()[2] for line in metrics if line.startswith("# TYPE ")}
    released = set((HERE / "names.txt").read_text().split())
    assert released - found == set()
