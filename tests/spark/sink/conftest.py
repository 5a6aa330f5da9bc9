"""A server for the sink's tests, and a proxy before it that can lose requests and answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.s3_proxy import S3Proxy
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from tests.spark.sink.attempts import Sink, Streams


@pytest.fixture(scope="session")
def sink_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("sink"), flags=["--log-level", "warning"]) as server:
        yield server


@pytest.fixture
def streams(sink_server: ServerProcess) -> Streams:
    from tests.spark.sink.attempts import Streams

    return Streams(sink_server.port)


@pytest.fixture
def sink(sink_server: ServerProcess) -> Sink:
    """A sink that no other test has."""
    from tests.spark.sink.attempts import new_sink

    return new_sink(sink_server.url)


@pytest.fixture(scope="session")
def _proxy(sink_server: ServerProcess) -> Iterator[S3Proxy]:
    with S3Proxy(sink_server.port) as proxy:
        yield proxy


@pytest.fixture
def proxy(_proxy: S3Proxy) -> Iterator[S3Proxy]:
    """A proxy that forwards everything unless told otherwise."""
    yield _proxy
    _proxy.heal()
