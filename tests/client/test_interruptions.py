"""The client when its waits are cancelled, and when it is used outside its life."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import anyio
import pytest

from streamd.client import AsyncClient, Client
from streamd.client.names import BadName
from tests.client.drivers import KINDS, connected
from tests.support.server_process import ServerProcess

BACKENDS = ("asyncio", "trio")


@pytest.fixture(name="server", scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Client]:
    with connected(request.param, server.url) as client:
        yield client


@contextmanager
def silent() -> Iterator[str]:
    """The URL of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("flushes", [True, False], ids=["in-the-block", "at-its-end"])
def test_nothing_after_the_block_runs_when_its_flush_was_cancelled(
    backend: str, flushes: bool
) -> None:
    """What follows the block may rely on the appends being stored."""
    reached = []

    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            with anyio.move_on_after(0.05) as scope:
                stream = client.stream("demo/x", content_type="text/plain")
                async with stream.producer() as producer:
                    await producer.append(b"a")
                    if flushes:
                        await producer.flush()
                reached.append("after the block")
            assert scope.cancelled_caught

    with silent() as url:
        anyio.run(main, url, backend=backend)
    assert reached == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_read_that_is_interrupted_before_any_server_answered_begins_again(backend: str) -> None:
    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            chunks = client.stream("demo/x").follow()
            for _ in range(3):
                with anyio.move_on_after(0.05) as scope:
                    await anext(chunks)
                assert scope.cancelled_caught
            await chunks.close()

    with silent() as url:
        anyio.run(main, url, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wait_that_is_interrupted_while_it_pauses_may_be_repeated(backend: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # and nobody there once it is closed

    async def main() -> None:
        async with AsyncClient(f"http://127.0.0.1:{port}", retry_for_s=60) as client:
            chunks = client.stream("demo/x").follow()
            for _ in range(10):
                with anyio.move_on_after(0.03) as scope:
                    await anext(chunks)
                assert scope.cancelled_caught
            await chunks.close()

    anyio.run(main, backend=backend)


def test_a_producer_accepts_nothing_outside_its_block(client: Client) -> None:
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("text/plain")
    producer = stream.producer()
    calls = (lambda: producer.append("b"), producer.flush, producer.close_stream)
    for call in calls:
        with pytest.raises(ValueError, match="block"):
            call()
    with producer:
        producer.append("a")
    for call in calls:
        with pytest.raises(ValueError, match="block"):
            call()
    with pytest.raises(ValueError, match="once"), producer:
        pass
    assert b"".join(chunk.data for chunk in stream.read()) == b"a"


def test_only_text_and_bytes_are_appended_as_they_are(client: Client) -> None:
    """bytes(3) would be three NULs."""
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("application/octet-stream")
    for wrong in (3, None, [1, 2], {"a": 1}):
        with pytest.raises(TypeError):
            stream.append(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            stream.append_many([wrong])  # type: ignore[list-item]
    stream.append(bytearray(b"a"))  # type: ignore[arg-type]
    stream.append(memoryview(b"b"))  # type: ignore[arg-type]
    assert b"".join(chunk.data for chunk in stream.read()) == b"ab"


@pytest.mark.parametrize("setting", ["max_in_flight", "max_batch_bytes", "max_queued_bytes"])
def test_a_producer_that_could_never_send_is_refused(client: Client, setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        client.stream("demo/x").producer(**{setting: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "credentials",
    [
        {"token": "sd_secret\n"},
        {"token": "sd_secret\r\nX-Evil: 1"},
        {"token": lambda: "sd_secret\n"},
        {"token": "sd_secret\N{EURO SIGN}"},
        {"headers": {"X-Key": "sd_secret\n"}},
    ],
    ids=["line-end", "header", "function", "not-ascii", "other-header"],
)
def test_a_secret_that_no_header_can_hold_is_refused_without_being_shown(
    server: ServerProcess, kind: str, credentials: dict[str, str]
) -> None:
    def use() -> None:
        with connected(kind, server.url, **credentials) as client:
            client.stream("demo/x").head()

    with pytest.raises(ValueError, match="header") as refused:
        use()
    error: BaseException | None = refused.value
    while error is not None:
        assert "secret" not in repr(error)
        error = error.__cause__ or error.__context__


def test_a_path_that_is_not_utf8_names_no_stream(server: ServerProcess) -> None:
    with Client(server.url) as client, pytest.raises(BadName, match="UTF-8"):
        client.stream("/queue/%FF")
