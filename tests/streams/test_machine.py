"""Creating, appending, closing and deleting: the outcome of every command."""

from __future__ import annotations

import msgspec
import pytest

from streamd.streams import keys, state
from streamd.streams.commands import Append, Command, Create, CreateBucket, Delete, Result
from streamd.streams.model import Bucket, ForkRequest, ProducerStamp, Settings
from streamd.streams.offsets import START, Position
from tests.streams.driver import JSON, TEXT, Driver, key


@pytest.fixture
def driver() -> Driver:
    return Driver()


def bucket_streams(driver: Driver, name: bytes = b"b") -> int:
    bucket = driver.state.buckets.get(name)
    assert bucket is not None
    return bucket.streams


# -- buckets ----------------------------------------------------------------------------------


def test_a_bucket_is_created_once(driver: Driver) -> None:
    assert driver.do(CreateBucket(b"new")).result is Result.CREATED
    assert driver.do(CreateBucket(b"new")).result is Result.BUCKET_EXISTS
    assert driver.state.buckets.get(b"new") == Bucket(driver.now_ms, 0)


def test_a_stream_needs_its_bucket(driver: Driver) -> None:
    command = Create(key("s", "absent"), Settings(TEXT))
    assert driver.do(command).result is Result.BUCKET_NOT_FOUND
    driver.do(CreateBucket(b"absent"))
    assert driver.do(command).result is Result.CREATED


def test_an_implicit_bucket_is_created_with_its_first_stream(driver: Driver) -> None:
    driver.create()
    assert driver.state.buckets.get(b"b") == Bucket(driver.now_ms, 1)
    assert driver.do(CreateBucket(b"b")).result is Result.BUCKET_EXISTS


def test_buckets_and_the_header_count_streams(driver: Driver) -> None:
    driver.create("one")
    driver.create("two")
    driver.create("two")
    driver.do(Create(key("one", "other"), Settings(), implicit_bucket=True))
    assert bucket_streams(driver) == 2
    assert bucket_streams(driver, b"other") == 1
    assert driver.state.header.streams == 3
    driver.delete("one")
    assert bucket_streams(driver) == 1
    assert bucket_streams(driver, b"other") == 1
    assert driver.state.header.streams == 2


# -- creating ---------------------------------------------------------------------------------


def test_a_new_stream_is_empty_and_open(driver: Driver) -> None:
    outcome = driver.create(content_type=None)
    assert outcome.result is Result.CREATED
    assert outcome.tail == START
    assert not outcome.closed
    assert outcome.content_type == "application/octet-stream"
    assert driver.content() == b""


def test_initial_records_are_the_streams_first(driver: Driver) -> None:
    outcome = driver.create(content_type=JSON, body=b"[1, 22]")
    assert outcome.tail == Position(2, 5)
    assert driver.content() == b"1,22,"


def test_a_stream_may_be_born_closed(driver: Driver) -> None:
    outcome = driver.create(body=b"all", closed=True)
    assert outcome.closed
    assert driver.append(b"more").result is Result.STREAM_CLOSED
    assert driver.content() == b"all"


def test_a_repeated_creation_leaves_the_stream_unchanged(driver: Driver) -> None:
    driver.create(body=b"first", ttl_ms=5000)
    driver.append(b"second")
    again = driver.create(body=b"ignored", ttl_ms=5000)
    assert again.result is Result.EXISTS
    assert again.tail == Position(2, 11)
    assert driver.content() == b"firstsecond"


@pytest.mark.parametrize("content_type", ["TEXT/Plain", "text/plain; charset=utf-8"])
def test_case_and_parameters_of_the_content_type_are_not_compared(
    driver: Driver, content_type: str
) -> None:
    driver.create()
    outcome = driver.create(content_type=content_type)
    assert outcome.result is Result.EXISTS
    assert outcome.content_type == TEXT


def test_the_default_content_type_may_be_left_out(driver: Driver) -> None:
    driver.create(content_type=None)
    assert driver.create(content_type="application/octet-stream").result is Result.EXISTS


@pytest.mark.parametrize(
    "asked",
    [
        Create(key("s"), Settings(JSON, 5000)),
        Create(key("s"), Settings(None, 5000)),
        Create(key("s"), Settings(TEXT, 6000)),
        Create(key("s"), Settings(TEXT)),
        Create(key("s"), Settings(TEXT, None, "2100-01-01T00:00:00Z", 4102444800000)),
        Create(key("s"), Settings(TEXT, 5000), closed=True),
        Create(key("s"), Settings(TEXT, 5000, fork=ForkRequest(key("s")))),
    ],
    ids=["type", "default type", "ttl", "no ttl", "expiry", "closed", "fork"],
)
def test_creating_again_with_other_settings_is_refused(driver: Driver, asked: Create) -> None:
    driver.create(ttl_ms=5000)
    assert driver.do(asked).result is Result.SETTINGS_DIFFER


def test_a_repeated_creation_is_compared_with_the_present_closed_state(driver: Driver) -> None:
    driver.create()
    driver.close()
    assert driver.create().result is Result.SETTINGS_DIFFER
    assert driver.create(closed=True).result is Result.EXISTS


# -- appending --------------------------------------------------------------------------------


def test_each_append_begins_at_the_tail(driver: Driver) -> None:
    driver.create()
    first = driver.append(b"one")
    second = driver.append(b"three")
    assert (first.result, first.tail) == (Result.APPENDED, Position(1, 3))
    assert (second.result, second.tail) == (Result.APPENDED, Position(2, 8))
    assert driver.content() == b"onethree"
    assert driver.content(at=first.tail) == b"three"


def test_every_message_of_a_json_append_is_a_record(driver: Driver) -> None:
    driver.create(content_type=JSON)
    assert driver.append(b'["a", {"b": [1]}]', content_type=JSON).tail == Position(2, 15)
    assert driver.boundaries() == [START, Position(1, 4), Position(2, 15)]


def test_an_append_to_an_absent_stream_is_refused(driver: Driver) -> None:
    assert driver.append(b"x").result is Result.NOT_FOUND


def test_an_append_of_another_content_type_is_refused(driver: Driver) -> None:
    driver.create()
    outcome = driver.append(b"1", content_type=JSON)
    assert outcome.result is Result.CONTENT_TYPE_DIFFERS
    assert outcome.content_type == TEXT
    assert driver.append(b"1", content_type="Text/Plain; charset=x").result is Result.APPENDED


def test_the_time_of_the_last_write_is_stored_and_a_close_is_not_a_write(driver: Driver) -> None:
    driver.create()
    driver.now_ms += 10
    driver.append(b"x")
    driver.now_ms += 10
    driver.close()
    stream = driver.stream()
    assert (stream.created_ms, stream.last_write_ms) == (1_000_000, 1_000_010)


def test_commands_of_one_entry_take_effect_in_order(driver: Driver) -> None:
    outcomes = driver.entry(
        Create(key("s"), Settings(TEXT), implicit_bucket=True),
        Append(key("s"), TEXT, b"x", [1]),
        Delete(key("s")),
        Append(key("s"), TEXT, b"x", [1]),
    )
    assert [outcome.result for outcome in outcomes] == [
        Result.CREATED,
        Result.APPENDED,
        Result.DELETED,
        Result.NOT_FOUND,
    ]


# -- closing ----------------------------------------------------------------------------------


def test_a_close_ends_the_appends(driver: Driver) -> None:
    driver.create(body=b"x")
    outcome = driver.close()
    assert (outcome.result, outcome.closed, outcome.tail) == (Result.CLOSED, True, Position(1, 1))
    refused = driver.append(b"y")
    assert (refused.result, refused.closed) == (Result.STREAM_CLOSED, True)
    assert refused.tail == Position(1, 1)


def test_a_close_may_be_repeated(driver: Driver) -> None:
    driver.create()
    driver.close()
    assert driver.close().result is Result.CLOSED


def test_append_and_close_are_one_step(driver: Driver) -> None:
    driver.create()
    outcome = driver.append(b"last", close=True)
    assert (outcome.result, outcome.closed, outcome.tail) == (Result.APPENDED, True, Position(1, 4))
    assert driver.append(b"more", close=True).result is Result.STREAM_CLOSED
    assert driver.content() == b"last"


def test_a_refused_append_does_not_close(driver: Driver) -> None:
    driver.create()
    refused = driver.append(b"1", content_type=JSON, close=True)
    assert refused.result is Result.CONTENT_TYPE_DIFFERS
    assert not driver.stream().closed


def test_a_close_of_an_absent_stream_is_refused(driver: Driver) -> None:
    assert driver.close().result is Result.NOT_FOUND


# -- Stream-Seq -------------------------------------------------------------------------------


def test_stream_seq_must_grow_in_lexicographic_order(driver: Driver) -> None:
    driver.create()
    assert driver.append(b"a", seq="10").result is Result.APPENDED
    assert driver.append(b"b", seq="10").result is Result.SEQ_REGRESSION
    assert driver.append(b"b", seq="1").result is Result.SEQ_REGRESSION
    assert driver.append(b"b", seq="2").result is Result.APPENDED, "as a text, 2 comes after 10"
    assert driver.append(b"c", seq="100").result is Result.SEQ_REGRESSION
    assert driver.content() == b"ab"


def test_appends_without_stream_seq_are_not_compared(driver: Driver) -> None:
    driver.create()
    driver.append(b"a", seq="5")
    driver.append(b"b")
    assert driver.append(b"c", seq="5").result is Result.SEQ_REGRESSION


# -- deleting ---------------------------------------------------------------------------------


def test_a_deleted_stream_is_not_found(driver: Driver) -> None:
    driver.create(body=b"x")
    assert driver.delete() is Result.DELETED
    assert driver.find() is None
    assert driver.delete() is Result.NOT_FOUND
    assert driver.append(b"y").result is Result.NOT_FOUND


def test_a_recreated_stream_has_no_trace_of_the_old_one(driver: Driver) -> None:
    driver.create(body=b"old", ttl_ms=9000)
    driver.append(b"x", seq="9", producer=("p", 7, 0))
    old_id = driver.stream().stream_id
    driver.delete()
    assert driver.create(content_type=JSON).result is Result.CREATED
    assert driver.stream().stream_id > old_id
    assert driver.append(b"1", content_type=JSON, seq="1", producer=("p", 0, 0)).tail == (1, 2)
    assert driver.content() == b"1,"


def test_the_rows_of_a_deleted_stream_are_noted_for_removal(driver: Driver) -> None:
    driver.create(body=b"x")
    stream_id = driver.stream().stream_id
    driver.delete()
    driver.flush()
    assert keys.garbage_key(stream_id) in driver.store.rows


# -- refusals ---------------------------------------------------------------------------------

REFUSED: list[tuple[Command, Result]] = [
    (CreateBucket(b"b"), Result.BUCKET_EXISTS),
    (Create(key("s", "absent"), Settings()), Result.BUCKET_NOT_FOUND),
    (Create(key("s"), Settings(TEXT)), Result.EXISTS),
    (Create(key("s"), Settings(JSON)), Result.SETTINGS_DIFFER),
    (Create(key("gone"), Settings(TEXT)), Result.IN_USE_BY_FORKS),
    (Append(key("absent"), TEXT, b"x", [1]), Result.NOT_FOUND),
    (Append(key("gone"), TEXT, b"x", [1]), Result.GONE),
    (Append(key("s"), JSON, b"1,", [2], True, "zz"), Result.CONTENT_TYPE_DIFFERS),
    (Append(key("s"), TEXT, b"x", [1], True, "5"), Result.SEQ_REGRESSION),
    (Append(key("closed"), TEXT, b"x", [1], False, "zz"), Result.STREAM_CLOSED),
    (Append(key("closed"), TEXT, b"", [], True), Result.CLOSED),
    (Append(key("s"), TEXT, b"x", [1], True, "9", ProducerStamp("p", 3, 1)), Result.DUPLICATE),
    (Append(key("s"), TEXT, b"x", [1], True, "9", ProducerStamp("p", 3, 3)), Result.SEQ_GAP),
    (Append(key("s"), TEXT, b"x", [1], True, "9", ProducerStamp("q", 0, 1)), Result.SEQ_GAP),
    (Append(key("s"), TEXT, b"x", [1], True, "9", ProducerStamp("p", 2, 2)), Result.EPOCH_STALE),
    (
        Append(key("s"), TEXT, b"x", [1], True, "9", ProducerStamp("p", 4, 1)),
        Result.EPOCH_WITHOUT_RESTART,
    ),
    (Append(key("s"), TEXT, b"x", [1], True, "1", ProducerStamp("p", 3, 2)), Result.SEQ_REGRESSION),
    (Delete(key("absent")), Result.NOT_FOUND),
    (Delete(key("gone")), Result.GONE),
]


@pytest.mark.parametrize(("command", "result"), REFUSED, ids=lambda case: getattr(case, "name", ""))
def test_refused_and_repeated_commands_change_nothing(
    driver: Driver, command: Command, result: Result
) -> None:
    driver.create("s", body=b"x")
    driver.append(b"y", seq="5", producer=("p", 3, 0))
    driver.append(b"z", seq="6", producer=("p", 3, 1))
    driver.create("closed", closed=True)
    driver.create("gone", body=b"x")
    driver.fork("fork", "gone")
    driver.delete("gone")
    driver.flush()
    before = dict(driver.store.rows)
    names = ("s", "closed", "gone", "fork", "absent")
    encoded = [msgspec.msgpack.encode(driver.find(name)) for name in names]
    driver.machine.take_changes()
    driver.now_ms += 1000

    assert driver.do(command).result is result

    assert [msgspec.msgpack.encode(driver.find(name)) for name in names] == encoded
    assert not driver.machine.take_changes()
    driver.flush()
    header = driver.store.rows.pop(keys.HEADER)
    applied, term, _, *counts = msgspec.msgpack.decode(before.pop(keys.HEADER))
    assert msgspec.msgpack.decode(header) == [applied + 1, term, driver.now_ms, *counts]
    assert driver.store.rows == before


# -- changes for live readers ---------------------------------------------------------------------


def test_a_change_ends_at_the_tail_even_if_the_stream_left_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "_STREAM_LIMIT", 0)
    driver = Driver()
    driver.create(body=b"zero")
    driver.append(b"one")
    driver.flush()
    driver.append(b"two")
    (change,) = driver.machine.take_changes().values()
    assert (change.start.byte, change.parts) == (4, [b"one", b"two"])
    assert change.stream.tail == driver.stream().tail
