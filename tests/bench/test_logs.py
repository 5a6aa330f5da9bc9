"""`python -m bench.logs` measures servers of three kinds by the same loop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.errors import ToolMissing
from bench.logs import LOGS, Nats, Redis, Streamd, measure, running
from tests.support.tools import needs

pytestmark = pytest.mark.long

REDIS, NATS = "redis-server", "nats-server"
DURATION_S = 0.2


@pytest.mark.parametrize(
    "name",
    [
        "streamd",
        pytest.param("redis", marks=needs(REDIS, shutil.which(REDIS) is not None)),
        pytest.param("nats", marks=needs(NATS, shutil.which(NATS) is not None)),
    ],
)
def test_appends_of_several_connections_are_counted(name: str, tmp_path: Path) -> None:
    log = LOGS[name]
    with running(log, tmp_path, None) as port:
        rate = measure(log, port, connections=3, duration_s=DURATION_S)
    assert rate.appends_s * DURATION_S >= 3, "each connection has sent one at least"
    assert rate.p50_ms > 0


def test_an_answer_is_complete_at_its_end_only() -> None:
    assert Streamd().is_answer(b"HTTP/1.1 204 No Content\r\nDate: x\r\n\r\n")
    assert not Streamd().is_answer(b"HTTP/1.1 204 No Content\r\nDate: x\r\n")
    assert not Streamd().is_answer(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
    assert Redis().is_answer(b"$15\r\n1795773574000-0\r\n")
    assert not Redis().is_answer(b"$15\r\n1795773574")
    assert not Redis().is_answer(b"-OOM command not allowed\r\n")
    assert Nats().is_answer(b'MSG to.2 1 26\r\n{"stream":"log","seq":6}\r\nPING\r\n')
    assert not Nats().is_answer(b"PING\r\n")


def test_a_server_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match=REDIS), running(LOGS["redis"], tmp_path, None):
        pass
