"""Users' programs: type-checked strictly, and examples in docstrings, run."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import streamd.client as library
from streamd.client import asynchronous, blocking, consuming, producing, stream
from tests.support.server_process import ServerProcess
from tests.support.type_checking import type_errors

PROGRAM = """
from collections.abc import Callable, Iterator
from typing import Any, TypedDict, assert_type

import msgspec
import pydantic
import streamd.client as library
from streamd.client import (
    Appended, AsyncClient, AsyncConsumer, AsyncFork, AsyncIteration, Chunk, Client, Consumer,
    FileEpochs, FilePositions, Fork, Iteration, ListedStream, MemoryPositions, Snapshot, StreamInfo,
    StreamNotFound, StreamPositions,
)


class Step(msgspec.Struct):
    step: int


class Row(TypedDict):
    step: int


class Model(pydantic.BaseModel):
    step: int


class Table:
    def take_over(self, consumer: str, owner: str) -> str | None:
        return None

    def keep(self, consumer: str, owner: str, position: str) -> None:
        pass


def blocking(client: Client) -> None:
    stream = client.stream("demo/x")
    assert_type(stream.create("text/plain"), StreamInfo)
    assert_type(stream.append("x", once="key"), Appended)
    assert_type(stream.follow(live="sse"), Iteration[Chunk])
    assert_type(stream.signed_url("GET"), str)
    for chunk in stream.read():
        assert_type(chunk, Chunk)
    assert_type(stream.read_json(), Iteration[Any])
    assert_type(stream.read_json(offsets=True), Iteration[tuple[str, Any]])
    assert_type(stream.read_json(type=Step), Iteration[Step])
    assert_type(stream.follow_json(type=Step, offsets=True), Iteration[tuple[str, Step]])
    assert_type(stream.follow_json(type=Row), Iteration[Row])
    assert_type(stream.read_json(type=Model), Iteration[Model])
    assert_type(stream.read_json(type=Step | Row), Iteration[Any])
    positions = FilePositions("positions")
    assert_type(stream.consumer("me", positions=positions, type=Step), Consumer[Step])
    for found in stream.consumer("me", positions=StreamPositions("a/b"), type=Row):
        assert_type(found, Row)
    assert_type(stream.consumer("me", positions=Table()), Consumer[Any])
    assert_type(stream.fork("demo/y"), Fork)
    assert_type(stream.fork("demo/y").info, StreamInfo)
    for part in stream.state():
        assert_type(part, Snapshot | Chunk)
    with stream.producer("me", epochs=FileEpochs("epochs")) as producer:
        producer.append_json({"any": "value"})
        assert_type(producer.flush(), Appended | None)
    with client.bucket("demo").streams() as listing:
        assert_type(next(listing), ListedStream)
    try:
        stream.delete()
    except StreamNotFound as error:
        assert_type(error.status, int | None)


async def asynchronous() -> None:
    async def token() -> str:
        return "sd_"

    async with AsyncClient(["http://a", "http://b"], token=token) as client:
        stream = client.stream("demo/x")
        assert_type(await stream.append(b"x", once="key"), Appended)
        assert_type(await stream.signed_url(), str)
        assert_type(stream.follow(), AsyncIteration[Chunk])
        async for message in stream.follow_json():
            assert_type(message, Any)
        assert_type(stream.follow_json(type=Step), AsyncIteration[Step])
        assert_type(
            stream.read_json(type=Row, offsets=True), AsyncIteration[tuple[str, Row]]
        )
        consumer = stream.consumer("me", positions=MemoryPositions(), type=Step)
        assert_type(consumer, AsyncConsumer[Step])
        async for step in consumer:
            assert_type(step, Step)
            await consumer.commit()
        assert_type(await stream.fork("demo/y"), AsyncFork)
        async for position, _ in stream.follow_json(offsets=True):
            assert_type(position, str)
        async with stream.producer() as producer:
            await producer.append("x")


blocking(Client("http://a", token=lambda: "sd_", headers={"X": "y"}, cert=("c", "k")))
"""
MISTAKES = """
from streamd.client import AsyncClient, Client

Client("http://a").stream("x").append(3)
Client("http://a").stream("x").follow(live="websocket")
Client("http://a", timeout="60")
for chunk in AsyncClient("http://a").stream("x").read():
    pass
"""


@pytest.mark.long
def test_a_users_program_is_type_checked_strictly(tmp_path: Path) -> None:
    assert type_errors(PROGRAM, tmp_path) == []
    codes = [error.rpartition("[")[2] for error in type_errors(MISTAKES, tmp_path)]
    assert codes == ["arg-type]", "arg-type]", "call-arg]", "attr-defined]"]


# --- help()


def test_the_examples_of_docstrings_do_what_they_show(tmp_path: Path) -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    said: list[str] = []
    shown = set()
    with ServerProcess(tmp_path / "data") as server:
        for module in (blocking, stream, producing, consuming, asynchronous):
            for test in finder.find(module):
                for example in test.examples:
                    example.source = example.source.replace("http://127.0.0.1:4437", server.url)
                runner.run(test, out=said.append)
                shown |= {test.name.rpartition(".")[2]} if test.examples else set()
    assert not runner.failures, "".join(said)
    assert shown == {
        "Client",
        "Stream",
        "Snapshots",
        "Bucket",
        "Producer",
        "AsyncClient",
        "Consumer",
    }


@pytest.mark.parametrize("name", library.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    found = getattr(library, name)
    if isinstance(found, str) or name == "Live":
        return
    assert inspect.getdoc(found)
    for method, member in vars(found).items():
        is_method = inspect.isfunction(member) or isinstance(member, property)
        if is_method and not method.startswith("_"):
            assert inspect.getdoc(getattr(found, method)), f"{name}.{method}"
