"""The first request is retried, as later ones are; a wrong address is refused at once."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamd.spark import options as given
from streamd.spark import register
from streamd.spark.options import BadOption
from streamd.spark.remote import Remote, Servers
from tests.spark.streams import Writer
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long


def test_a_query_waits_for_a_server_that_restarts(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with ServerProcess(tmp_path / "data") as server:
        writer = Writer(server.url)
        writer.filled("first/s", [{"n": 1}, {"n": 2}])
        writer.close()
    with socket.create_server(("127.0.0.1", server.port)) as closing:
        frame = spark.read.format("streamd").options(url=server.url, stream="first/s")
        with ThreadPoolExecutor() as pool:
            rows = pool.submit(lambda: frame.load().collect())
            # The first request of all, which infers the schema, finds no server.
            closing.accept()[0].close()
            closing.close()
            with ServerProcess(tmp_path / "data", port=server.port):
                assert [row.record.n for row in rows.result()] == [1, 2]


def _failing(code: int) -> object:
    def getaddrinfo(*_: object, **__: object) -> object:
        raise socket.gaierror(code, "as the resolver says")

    return getaddrinfo


def test_a_host_that_no_resolver_knows_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _failing(socket.EAI_NONAME))
    servers = Servers(("http://nowhere.example:4437", "http://nor.example"), retry_for_s=3600.0)
    with pytest.raises(BadOption, match=r"no host that exists: nowhere\.example, nor\.example"):
        Remote(servers)


def test_a_resolver_that_fails_for_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that forgot a name which the driver had found."""
    port = unused_port()
    servers = Servers((f"http://localhost:{port}",), retry_for_s=0.0)
    for code, met in ((socket.EAI_AGAIN, False), (socket.EAI_NONAME, True)):
        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", _failing(code))
            Remote(servers, met=met)


def test_one_host_that_exists_is_enough(server: ServerProcess) -> None:
    remote = Remote(Servers(("http://no-such-host.invalid", server.url)))
    assert list(remote.describe([])) == []


@pytest.mark.parametrize(
    "url",
    [
        "http://node:99999",
        "http://node:x",
        "http://[::1:4437",
        "http://no..de:4437",
        f"http://{'n' * 64}:4437",
    ],
)
def test_a_url_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(BadOption, match=r"option url has .*; it must be http://HOST:PORT"):
        given.urls({"url": url})
