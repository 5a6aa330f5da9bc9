"""Consumers, whose positions are kept in memory, in a file, or in a stream of the server."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import streamd.client as library
from streamd.client import (
    Client,
    ConsumerFenced,
    FilePositions,
    MemoryPositions,
    MessageMismatch,
    OffsetGone,
    Stream,
    StreamPositions,
    StreamReplaced,
)
from tests.support.server_process import ServerProcess

Store = Callable[[], Any]


class Step(msgspec.Struct):
    step: int


@pytest.fixture
def stream(client: Client) -> Stream:
    """A closed JSON stream with four messages in two appends."""
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("application/json")
    stream.append_json(1, 2, 3)
    stream.append_json(4, close=True)
    return stream


@pytest.fixture(params=["memory", "file", "stream"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """What another process would open to find the same positions."""
    if request.param == "memory":
        memory = MemoryPositions()
        return lambda: memory
    if request.param == "file":
        return lambda: FilePositions(tmp_path / "positions")
    name = f"positions/{uuid4()}"
    return lambda: StreamPositions(name, compact_every=3)


def test_a_consumer_begins_after_the_last_commit(stream: Stream, store: Store) -> None:
    for handled in ([1], [2, 3], [4]):
        with stream.consumer("me", positions=store()) as consumer:
            assert [next(consumer) for _ in handled] == handled
            consumer.commit()
    with stream.consumer("me", positions=store()) as consumer:
        assert list(consumer) == []
        consumer.commit()


def test_what_was_not_committed_comes_again(stream: Stream, store: Store) -> None:
    with stream.consumer("me", positions=store()) as consumer:
        consumer.commit()  # Nothing has come yet.
        assert (next(consumer), consumer.position is not None) == (1, True)
        consumer.commit()
        assert list(consumer) == [2, 3, 4]
    with stream.consumer("me", positions=store()) as consumer:
        assert list(consumer) == [2, 3, 4]
        consumer.commit()  # also after the end
    assert list(stream.consumer("me", positions=store())) == []


def test_names_and_streams_have_positions_of_their_own(
    client: Client, stream: Stream, store: Store
) -> None:
    fork = stream.fork(f"demo/{uuid4()}")
    positions = store()
    consumers = [
        stream.consumer("me", positions=positions),
        stream.consumer("you", positions=positions),
        fork.consumer("me", positions=positions),
    ]
    for count, consumer in enumerate(consumers, start=1):
        for _ in range(count):
            next(consumer)
    for consumer in consumers:
        consumer.commit()
        consumer.close()
    assert [
        next(each.consumer(name, positions=store()))
        for each, name in ((stream, "me"), (stream, "you"))
    ] == [2, 3]
    with pytest.raises(library.StreamNotFound):
        next(client.stream(f"demo/{uuid4()}").consumer("me", positions=store()))


def test_a_later_start_takes_over_and_the_former_moves_nothing_back(
    stream: Stream, store: Store
) -> None:
    former = stream.consumer("me", positions=store())
    assert next(former) == 1
    former.commit()
    with stream.consumer("me", positions=store()) as later:
        assert [next(later), next(later)] == [2, 3]
        later.commit()
        assert next(former) == 2
        with pytest.raises(ConsumerFenced):
            former.commit()
        with pytest.raises(ConsumerFenced):
            former.seek(library.START)
        later.commit()
    former.close()
    assert list(stream.consumer("me", positions=store())) == [4]


def test_messages_are_values_of_a_type_and_one_that_does_not_fit_is_passed_by_a_commit(
    client: Client, store: Store
) -> None:
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("application/json")
    stream.append_json(Step(1), "no", Step(3), close=True)
    for _ in range(2):  # It comes again until its position is kept.
        consumer = stream.consumer("me", positions=store(), type=Step)
        assert next(consumer) == Step(1)
        with pytest.raises(MessageMismatch):
            next(consumer)
    consumer.commit()
    assert list(stream.consumer("me", positions=store(), type=Step)) == [Step(3)]


def test_the_first_start_at_the_present_end_is_kept_without_a_commit(
    client: Client, server: ServerProcess
) -> None:
    """Else what comes before the first commit would be left out by a second start."""
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("application/json", data="[1]")

    class News(MemoryPositions):
        """A message comes when a position was kept."""

        def keep(self, consumer: str, owner: str, position: str) -> None:
            super().keep(consumer, owner, position)
            with Client(server.url) as direct:
                direct.stream(stream.name).append_json(2, close=True)

    positions = News()
    for _ in range(2):
        consumer = stream.consumer("me", positions=positions, start=library.NOW)
        assert list(consumer) == [2]


def test_a_consumer_moves_to_any_position_and_stays_there(stream: Stream, store: Store) -> None:
    with stream.consumer("me", positions=store()) as consumer:
        assert list(consumer) == [1, 2, 3, 4]
        consumer.seek(library.START)
        assert next(consumer) == 1
        middle = consumer.position
        assert middle is not None
        assert list(stream.read_json(middle)) == [2, 3, 4]
        consumer.seek(middle)
    with stream.consumer("me", positions=store()) as consumer:
        assert list(consumer) == [2, 3, 4]
        consumer.seek(library.NOW)
        assert list(consumer) == []
        with pytest.raises(ValueError, match="not the position"):
            consumer.seek("1,x")
    assert list(stream.consumer("me", positions=store())) == []


@pytest.mark.parametrize("others", [[], [5], [5, 6, 7, 8, 9]], ids=["empty", "shorter", "longer"])
def test_a_stream_that_was_replaced_while_no_consumer_ran_is_reported(
    stream: Stream, store: Store, others: list[int]
) -> None:
    with stream.consumer("me", positions=store()) as consumer:
        assert [next(consumer), next(consumer)] == [1, 2]
        consumer.commit()
    stream.delete()
    stream.create("application/json")
    if others:
        stream.append_json(*others)
    stream.close()
    for _ in range(2):
        with pytest.raises(StreamReplaced):
            next(stream.consumer("me", positions=store()))
    with stream.consumer("me", positions=store()) as consumer:
        consumer.seek(library.START)
        assert list(consumer) == others
        consumer.commit()
    assert list(stream.consumer("me", positions=store())) == []


def test_a_snapshot_after_the_position_is_reported(client: Client, store: Store) -> None:
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("application/json")
    end = stream.append_json(1, 2, 3).next_offset
    stream.append_json(4, close=True)
    with stream.consumer("me", positions=store()) as consumer:
        next(consumer)
        consumer.commit()
    stream.snapshot.publish(end, "{}", content_type="application/json")
    with stream.consumer("me", positions=store()) as consumer:
        with pytest.raises(OffsetGone) as gone:
            next(consumer)
        earliest = gone.value.earliest_offset
        assert earliest is not None
        consumer.seek(earliest)
        assert list(consumer) == [4]


def test_a_fenced_consumer_is_an_error_that_passes_between_processes() -> None:
    error = ConsumerFenced("me of /v1/stream/x")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code) == (str(error), "CONSUMER_FENCED")


# --- positions in a file


@pytest.mark.parametrize("content", [b"", b'{"a": 7}', b'{"a": {"owner": 1}}', b"[]", b'{"a": {'])
def test_no_position_comes_from_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    """The start of the stream would pass for the position."""
    file = tmp_path / "positions"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"{file} is damaged"):
        FilePositions(file).take_over("b", "owner")
    assert file.read_bytes() == content


# --- positions in a stream


def test_a_stream_of_positions_does_not_grow_without_limit(stream: Stream, client: Client) -> None:
    name = f"positions/{uuid4()}"
    positions = StreamPositions(name, compact_every=5)
    quiet = stream.consumer("quiet", positions=positions)
    assert [next(quiet), next(quiet)] == [1, 2]
    quiet.commit()
    with stream.consumer("me", positions=positions) as consumer:
        for _ in range(10):
            for _ in range(4):
                next(consumer)
                consumer.commit()
                assert len(client.stream(name).bootstrap().messages) <= 5
            consumer.seek(library.START)
    for _ in range(10):  # starts alone
        next(stream.consumer("me", positions=positions))
        assert len(client.stream(name).bootstrap().messages) <= 5
    assert next(quiet) == 3
    quiet.commit()
    quiet.close()
    assert next(stream.consumer("quiet", positions=positions)) == 4


def test_a_stream_of_something_else_is_refused(stream: Stream, client: Client) -> None:
    name = f"positions/{uuid4()}"
    client.stream(name).create("application/json", data='["hello"]')
    with pytest.raises(ValueError, match=f"{name} holds other things"):
        next(stream.consumer("me", positions=StreamPositions(name)))


def test_a_stream_of_positions_that_cannot_be_compacted_is_refused() -> None:
    for name in ("positions", "a/b/c"):
        with pytest.raises(library.BadName):
            StreamPositions(name)
    with pytest.raises(ValueError, match="at least 1"):
        StreamPositions("positions/x", compact_every=0)


def test_starts_with_a_clock_that_was_set_back_take_over(
    stream: Stream, client: Client, server: ServerProcess
) -> None:
    name = f"positions/{uuid4()}"
    with stream.consumer("me", positions=StreamPositions(name)) as consumer:
        next(consumer)
        consumer.commit()
    [claim, _] = client.stream(name).bootstrap().json()
    later = {**claim, "owner": "elsewhere", "epoch": claim["epoch"] + 10**9}
    with Client(server.url) as direct:
        producer = f"consumer-{_digest(claim['consumer'])}"
        headers = {
            "Content-Type": "application/json", "Producer-Id": producer,
            "Producer-Epoch": str(later["epoch"]), "Producer-Seq": "0",
        }  # fmt: skip
        path = f"/v1/stream/{name}"
        direct.request("POST", path, headers=headers, body=json.dumps(later).encode())
    with stream.consumer("me", positions=StreamPositions(name)) as consumer:
        assert next(consumer) == 2
        consumer.commit()
    assert next(stream.consumer("me", positions=StreamPositions(name))) == 3


def _digest(consumer: str) -> str:
    from hashlib import sha256

    return sha256(consumer.encode()).hexdigest()[:32]
