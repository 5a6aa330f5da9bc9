"""Messages that are read as values of a type: msgspec's, Python's own, and pydantic's."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypedDict
from uuid import uuid4

import msgspec
import pydantic
import pytest

import streamd.client as library
from streamd.client import Client, MessageMismatch, Stream


class Step(msgspec.Struct):
    step: int
    at: datetime | None = None


@dataclass
class Row:
    step: int
    at: datetime | None = None


class Entry(TypedDict):
    step: int


class Model(pydantic.BaseModel):
    step: int
    at: datetime | None = None


class Checked:
    """A class with nothing of pydantic but the method."""

    def __init__(self, step: int) -> None:
        self.step = step

    @classmethod
    def model_validate(cls, value: Any) -> Checked:
        if not isinstance(value["step"], int):
            raise ValueError("a step is a number")
        return cls(value["step"])


TYPES: dict[str, tuple[Any, Callable[[Any], int]]] = {
    "struct": (Step, lambda found: found.step),
    "dataclass": (Row, lambda found: found.step),
    "typed-dict": (Entry, lambda found: found["step"]),
    "union": (Step | int, lambda found: found.step),
    "pydantic": (Model, lambda found: found.step),
    "method": (Checked, lambda found: found.step),
}
ROWS = [{"step": 1}, {"step": "two"}, {"step": 3}]


@pytest.fixture
def stream(client: Client) -> Stream:
    """A JSON stream."""
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("application/json")
    return stream


@pytest.fixture
def mixed(stream: Stream) -> Stream:
    """Three messages in one append, the second of which fits no type of this page, and a fourth."""
    stream.append_json(*ROWS)
    stream.append_json({"step": 4}, close=True)
    return stream


def rest(messages: Any) -> list[Any]:
    """What comes, messages that do not fit as their errors."""
    found: list[Any] = []
    while True:
        try:
            found.append(next(messages))
        except StopIteration:
            return found
        except MessageMismatch as mismatch:
            found.append(mismatch)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("live", [None, "sse", "long-poll"])
def test_each_message_is_a_value_of_the_type(mixed: Stream, name: str, live: Any) -> None:
    kind, step = TYPES[name]
    read = mixed.read_json if live is None else lambda **k: mixed.follow_json(live=live, **k)
    first, mismatch, *others = rest(read(type=kind))
    assert isinstance(mismatch, MessageMismatch)
    assert [step(first), *map(step, others)] == [1, 3, 4]


@pytest.mark.parametrize("name", TYPES)
def test_a_message_that_does_not_fit_names_stream_position_and_reason(
    mixed: Stream, name: str
) -> None:
    kind, step = TYPES[name]
    pairs = rest(mixed.read_json(type=kind, offsets=True))
    mismatch = pairs.pop(1)
    assert mismatch.stream == mixed.name
    assert mismatch.data == b'{"step":"two"}'
    assert mismatch.reason == str(mismatch.__cause__)
    assert all(word in str(mismatch) for word in (mixed.name, mismatch.position, mismatch.reason))
    assert [step(value) for _, value in pairs] == [1, 3, 4]
    # A reader that begins there gets what comes after it, and one from before it gets it again.
    after = rest(mixed.read_json(mismatch.position, type=kind))
    assert [step(value) for value in after] == [3, 4]
    [again, *_] = rest(mixed.read_json(pairs[0][0], type=kind))
    assert again.position == mismatch.position


def test_a_follower_waits_after_a_message_that_does_not_fit(stream: Stream) -> None:
    stream.append_json("no")
    with stream.follow_json(type=Step) as messages:
        with pytest.raises(MessageMismatch):
            next(messages)
        stream.append_json(Step(2))
        assert next(messages) == Step(2)


def test_values_pass_through_json_without_loss(stream: Stream) -> None:
    class Price(msgspec.Struct):
        price: Decimal
        at: datetime
        key: bytes
        names: set[str]

    stream.append(b'{"price":0.10,"at":"2026-01-02T03:04:05Z","key":"AA==","names":["a","a"]}')
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert list(stream.read_json(type=Price)) == [Price(Decimal("0.10"), at, b"\0", {"a"})]


@pytest.mark.parametrize("kind", [dict[str, str], pydantic.RootModel[dict[str, str]]])
def test_half_an_emoji_is_text_for_types_too(stream: Stream, kind: Any) -> None:
    stream.append(rb'{"delta":"\ud83d"}')
    [found] = stream.read_json(type=kind)
    assert getattr(found, "root", found) == {"delta": "\ud83d"}


def test_a_type_that_no_json_tells_apart_is_refused_before_anything_is_asked() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(TypeError):
        client.stream("demo/x").read_json(type=Step | Row)


def test_data_that_is_not_an_array_of_json_is_refused_for_types_too(client: Client) -> None:
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("text/plain", data='{"step":1}')
    with pytest.raises(ValueError, match=r".") as refused:
        list(stream.read_json(type=Step))
    assert not isinstance(refused.value, MessageMismatch)


def test_an_error_of_a_message_passes_between_processes() -> None:
    error = MessageMismatch("demo/x", "1_2", "Expected `int`", b"{}")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.data) == (str(error), b"{}")


def test_a_fork_is_a_stream_with_the_facts_of_its_creation(client: Client, mixed: Stream) -> None:
    name = f"demo/{uuid4()}"
    end = mixed.head().next_offset
    fork = mixed.fork(name)
    assert (fork.name, fork.info.is_new, fork.info.next_offset) == (name, True, end)
    assert not mixed.fork(name).info.is_new
    fork.append("5")  # The type is known without a request.
    assert [step for _, step in fork.read_json(end, offsets=True)] == [5]
    assert [*client.stream(name).read_json()] == [*ROWS, {"step": 4}, 5]
    with pytest.raises(library.BadName):
        mixed.fork("a//b")
