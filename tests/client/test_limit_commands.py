"""``streamd limits`` against a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.client.test_token_commands import streamd
from tests.support.server_process import ServerProcess


def test_limits_are_set_listed_and_cleared(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        url = server.url
        streamd(
            "limits", "set", "bucket", "agents", "--max-bytes", "10GiB", "--max-streams", "1000",
            url=url,
        )  # fmt: skip
        streamd("limits", "set", "identity", "ci", "--requests-per-s", "100", url=url)
        streamd("limits", "set", "bucket", "*", url=url)
        assert json.loads(streamd("limits", "list", "--json", url=url).stdout) == {
            "buckets": {"*": {}, "agents": {"max_bytes": 10 * 2**30, "max_streams": 1000}},
            "identities": {"ci": {"requests_per_s": 100}},
        }
        listed = streamd("limits", "list", url=url).stdout
        assert "max_bytes=10737418240 max_streams=1000" in listed
        streamd("limits", "clear", "bucket", "agents", url=url)
        assert "agents" not in streamd("limits", "list", url=url).stdout
        told = streamd("limits", "clear", "bucket", "agents", url=url, status=1).stderr
        assert "LIMITS_NOT_FOUND" in told


@pytest.mark.parametrize("size", ["10GB", "-1", "1.5GiB", "GiB", ""])
def test_a_size_is_a_whole_number_of_bytes_or_of_binary_units(size: str) -> None:
    told = streamd("limits", "set", "bucket", "agents", "--max-bytes", size, status=2).stderr
    assert "is not a size" in told
