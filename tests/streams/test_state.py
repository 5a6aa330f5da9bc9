"""The state over its store: what is in memory, what is stored, and the border between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamd.streams.chunks import OffsetMismatch, Window
from streamd.streams.codec import Batch, decode_batch, encode_batch
from streamd.streams.commands import Append, Command, Create, CreateBucket, Delete, Sweep, Touch
from streamd.streams.content import split_body
from streamd.streams.machine import Machine
from streamd.streams.model import ForkRequest, ProducerStamp, Settings
from streamd.streams.offsets import START, Position
from streamd.streams.queries.reading import read_from_store
from streamd.streams.state import State, load_rows, stream_keys
from streamd.streams.tails import SEAL_BYTES
from tests.streams.driver import EVERYTHING, JSON, TEXT, Driver, key, logical
from tests.streams.memory_store import MemoryStore


@pytest.fixture
def driver() -> Driver:
    return Driver()


def append(name: str, body: bytes, kind: str = TEXT, **others: object) -> Append:
    return Append(key(name), kind, *split_body(kind, body), **others)  # type: ignore[arg-type]


# -- reads ------------------------------------------------------------------------------------


def test_a_reopened_state_reads_the_same(driver: Driver) -> None:
    driver.create(content_type=JSON, body=b"[1, 22]", ttl_ms=5000)
    driver.append(b'["x", "y"]', content_type=JSON, seq="1", close=True)
    before = driver.stream(), driver.boundaries(), driver.content()
    driver.flush()
    driver.reopen()
    assert (driver.stream(), driver.boundaries(), driver.content()) == before
    assert driver.state.header.applied_index == 2


def test_an_empty_store_is_an_empty_state() -> None:
    header = Driver().state.header
    assert (header.applied_index, header.streams) == (0, 0)


def test_stored_records_are_not_recent(driver: Driver) -> None:
    driver.create(body=b"x")
    assert driver.recent(driver.stream(), Window(START, 100)) is not None
    driver.flush()
    assert driver.recent(driver.stream(), Window(START, 100)) is not None
    driver.reopen()
    assert driver.recent(driver.stream(), Window(START, 100)) is None


def test_a_read_at_the_tail_does_not_wait(driver: Driver) -> None:
    driver.create(body=b"x")
    driver.flush()
    driver.reopen()
    stream = driver.stream()
    found = driver.recent(stream, Window(stream.tail, 100))
    assert found is not None
    assert (found.parts, found.end, found.size) == ([], stream.tail, 0)


def test_a_read_continues_from_the_store_into_memory(driver: Driver) -> None:
    driver.create()
    driver.append(b"stored")
    driver.flush()
    driver.reopen()
    driver.append(b"recent")
    stream = driver.stream()
    stored = driver.read(stream)
    assert (b"".join(stored.parts), stored.end) == (b"stored", Position(1, 6))
    recent = driver.read(stream, stored.end)
    assert (b"".join(recent.parts), recent.end) == (b"recent", Position(2, 12))
    assert driver.content(max_bytes=1) == b"storedrecent"


def test_a_record_that_does_not_fit_ends_a_read_of_stored_and_recent_alike(driver: Driver) -> None:
    driver.create()
    for _ in range(4):
        driver.append(b"x" * 10)
    for _ in range(2):
        found = driver.read(driver.stream(), START, max_bytes=25)
        assert (found.size, found.end) == (20, Position(2, 20))
        driver.flush()


def test_chunks_read_from_the_store_may_be_kept_in_memory(driver: Driver) -> None:
    driver.create(body=b"stored")
    driver.flush()
    driver.reopen()
    stream = driver.stream()
    found = read_from_store(driver.store, stream, Window(START, 100))
    driver.state.tails.install(found.stream_id, list(found.chunks))
    recent = driver.recent(stream, Window(START, 100))
    assert recent is not None
    assert b"".join(recent.parts) == b"stored"
    driver.append(b"+more")
    driver.flush()
    driver.reopen()
    assert driver.content() == b"stored+more"


def test_a_fork_reads_its_source_from_the_store_and_its_own_from_memory(driver: Driver) -> None:
    driver.create(body=b"source")
    driver.flush()
    driver.reopen()
    driver.fork("f", "s", START, 4)
    driver.append(b"fork", "f")
    assert driver.content("f") == b"sourfork"
    driver.flush()
    assert driver.content("f") == b"sourfork"
    driver.reopen()
    assert driver.content("f", max_bytes=1) == b"sourfork"


@pytest.mark.parametrize("at", [(0, 6), (1, 0), (1, 4), (1, 11), (2, 9), (2, 11), (3, 10), (9, 90)])
@pytest.mark.parametrize("stored", [False, True])
def test_an_offset_of_another_stream_is_noticed(
    driver: Driver, at: tuple[int, int], stored: bool
) -> None:
    driver.create(body=b"hello")
    driver.append(b"world")
    if stored:
        driver.flush()
        driver.reopen()
    with pytest.raises(OffsetMismatch):
        driver.read(driver.stream(), Position(*at))


def test_a_cut_record_ends_for_the_fork_where_it_was_cut(driver: Driver) -> None:
    driver.create(body=b"hello")
    driver.fork("f", "s", START, 2)
    driver.append(b"x", "f")
    assert driver.content("f", Position(1, 2)) == b"x"
    with pytest.raises(OffsetMismatch):
        driver.read(driver.stream("f"), Position(1, 5))


def test_a_long_stream_is_read_from_the_store_a_few_chunks_at_a_time(driver: Driver) -> None:
    driver.create()
    records = [bytes([65 + number]) * (SEAL_BYTES // 3) for number in range(20)]
    for record in records:
        driver.append(record)
    assert driver.content() == b"".join(records)
    driver.flush()
    driver.reopen()
    stream = driver.stream()
    found = read_from_store(driver.store, stream, Window(START, SEAL_BYTES))
    assert found.slice is not None
    assert found.slice.end == Position(3, 3 * len(records[0]))
    assert len(found.chunks) == 1
    for max_bytes in (1, SEAL_BYTES // 2, 3 * SEAL_BYTES, EVERYTHING):
        assert driver.content(max_bytes=max_bytes) == b"".join(records)


def test_many_small_flushes_leave_one_small_chunk(driver: Driver) -> None:
    driver.create()
    for number in range(20):
        driver.append(b"%d," % number)
        driver.flush()
    assert len([row for row in driver.store.rows if row[:1] == b"d"]) == 1
    driver.reopen()
    assert driver.content() == b"".join(b"%d," % number for number in range(20))


# -- storing ----------------------------------------------------------------------------------


def test_the_bytes_that_wait_to_be_stored_are_counted(driver: Driver) -> None:
    assert not driver.state.unstored
    driver.create()
    driver.append(b"x" * 1000)
    assert driver.state.unstored
    assert driver.state.unstored_bytes >= 1000
    driver.flush()
    assert not driver.state.unstored
    assert driver.state.unstored_bytes == 0
    assert driver.state.stored_index == 2


def test_changes_during_a_flush_wait_for_the_next(driver: Driver) -> None:
    driver.create(body=b"a")
    items = driver.state.begin_flush()
    driver.append(b"b")
    driver.create("other", body=b"c")
    assert driver.content() == b"ab"
    driver.store.write(items)
    driver.state.end_flush()
    assert driver.state.stored_index == 1
    assert driver.state.unstored
    assert driver.content() == b"ab"
    crashed = Driver(driver.store.copy())
    assert crashed.content() == b"a"
    assert crashed.find("other") is None
    driver.flush()
    driver.reopen()
    assert driver.content() == b"ab"
    assert driver.content("other") == b"c"


def test_a_stream_deleted_during_a_flush_stays_deleted(driver: Driver) -> None:
    driver.create(body=b"a")
    items = driver.state.begin_flush()
    driver.delete()
    driver.store.write(items)
    driver.state.end_flush()
    driver.flush()
    driver.reopen()
    assert driver.find() is None
    assert driver.state.header.streams == 0


def test_a_stream_deleted_before_a_flush_is_never_stored(driver: Driver) -> None:
    driver.create(body=b"a")
    stream_id = driver.stream().stream_id
    driver.delete()
    assert stream_id not in driver.state.tails
    driver.flush()
    assert not [row for row in driver.store.rows if row[:1] in b"ds"]


def test_the_rows_that_a_command_reads_are_loaded_ahead(driver: Driver) -> None:
    fork = Create(key("f"), Settings(fork=ForkRequest(key("s"))))
    wanted = {
        key("s"): stream_keys(append("s", b"x")),
        key("d"): stream_keys(Delete(key("d"))),
        key("c"): stream_keys(Create(key("c"), Settings())),
        key("t"): stream_keys(Touch([(key("t"), 1, 0)])),
        key("w"): stream_keys(Sweep([key("w")])),
    }
    for name, found in wanted.items():
        assert found == [name]
    assert stream_keys(fork) == [key("f"), key("s")]
    assert stream_keys(CreateBucket(b"b")) == []
    driver.create()
    driver.flush()
    rows = load_rows(driver.store, [key("s"), key("absent")])
    assert rows[key("absent")] is None
    driver.reopen()
    assert driver.state.streams.install(key("s"), rows[key("s")]) == driver.stream()


# -- replay -----------------------------------------------------------------------------------


def story() -> list[Batch]:
    """Entries about the same few streams, 100 ms apart."""
    brief = Settings(TEXT, ttl_ms=450)
    commands: list[list[Command]] = [
        [CreateBucket(b"b")],
        [Create(key("a"), Settings(TEXT), False, b"begin", [5])],
        [append("a", b"-one", seq="1"), append("a", b"-two", producer=ProducerStamp("p", 0, 0))],
        [Create(key("j"), Settings(JSON)), append("j", b"[1, 22, 333]", JSON)],
        [Create(key("brief"), brief)],
        [append("a", b"-three", producer=ProducerStamp("p", 0, 1)), append("brief", b"x")],
        [Create(key("f"), Settings(fork=ForkRequest(key("a"), (1, 5), 2)))],
        [append("f", b"-fork"), append("a", b"-four"), append("a", b"late", seq="0")],
        [Create(key("g"), Settings(fork=ForkRequest(key("j"), (0, 0), 2)))],
        [Touch([(key("brief"), 3, 1_000_900)]), append("g", b"[4, 5]", JSON)],
        [Delete(key("j")), append("a", b"-two", producer=ProducerStamp("p", 0, 0))],
        [],
        [Create(key("h"), Settings(fork=ForkRequest(key("g"), (2, 5), 1)))],
        [Sweep([key("brief")]), append("h", b"[6]", JSON), Delete(key("g"))],
        [append("a", b"-end", close=True, producer=ProducerStamp("p", 1, 0))],
        [Sweep([key("brief")]), Create(key("brief"), brief)],
        [Delete(key("a")), Create(key("a"), Settings(TEXT)), append("f", b"-on")],
        [Delete(key("f")), Create(key("a"), Settings(TEXT)), append("a", b"once more")],
        [append("brief", b"y"), append("h", b"[7, 8]", JSON)],
        [Delete(key("h")), append("absent", b"z")],
    ]
    return [Batch(1_000_000 + 100 * number, batch) for number, batch in enumerate(commands, 1)]


def play(driver: Driver, entries: list[Batch]) -> None:
    for batch in entries:
        driver.now_ms = batch.now_ms
        driver.entry(*decode_batch(encode_batch(batch)).commands)


def flush_then_crash(driver: Driver, entries: list[Batch], at: int) -> None:
    play(driver, entries[:at])
    driver.flush()
    play(driver, entries[at : at + 3])
    driver.reopen()
    play(driver, entries[at:])


def crash_after_the_write(driver: Driver, entries: list[Batch], at: int) -> None:
    play(driver, entries[:at])
    items = driver.state.begin_flush()
    play(driver, entries[at : at + 2])
    driver.store.write(items)
    driver.reopen()
    play(driver, entries[at:])


def crash_before_the_write(driver: Driver, entries: list[Batch], at: int) -> None:
    play(driver, entries[: at // 2])
    driver.flush()
    play(driver, entries[at // 2 : at])
    driver.state.begin_flush()
    driver.reopen()
    play(driver, entries[at // 2 :])


def go_on_during_the_flush(driver: Driver, entries: list[Batch], at: int) -> None:
    play(driver, entries[:at])
    items = driver.state.begin_flush()
    play(driver, entries[at : at + 2])
    driver.store.write(items)
    driver.state.end_flush()
    play(driver, entries[at + 2 :])


def crash_after_every_entry(driver: Driver, entries: list[Batch], at: int) -> None:
    for number, batch in enumerate(entries):
        play(driver, [batch])
        if number >= at:
            driver.flush()
            driver.reopen()


@pytest.mark.parametrize("at", range(len(story()) + 1))
@pytest.mark.parametrize(
    "course",
    [
        flush_then_crash,
        crash_after_the_write,
        crash_before_the_write,
        go_on_during_the_flush,
        crash_after_every_entry,
    ],
)
def test_the_state_does_not_depend_on_when_it_is_stored(
    course: Callable[[Driver, list[Batch], int], None], at: int
) -> None:
    expected, driver = Driver(MemoryStore()), Driver(MemoryStore())
    play(expected, story())
    course(driver, story(), at)
    assert driver.state.header == expected.state.header
    for name in ("a", "brief", "f", "g", "h", "j"):
        assert driver.find(name) == expected.find(name)
        if driver.find(name) is not None:
            assert driver.content(name, max_bytes=1) == expected.content(name)
    expected.flush()
    driver.flush()
    assert logical(driver.store) == logical(expected.store)


def test_a_state_without_readers_keeps_few_stored_rows_in_memory() -> None:
    store = MemoryStore()
    state = State(store, tail_limit_bytes=10_000)
    machine = Machine(state)
    machine.apply(1, 1, 0, [Create(key("a"), Settings(TEXT), implicit_bucket=True)])
    for index in range(2, 20):
        machine.apply(index, 1, 0, [append("a", bytes(20_000))])
        store.write(state.begin_flush())
        state.end_flush()
        assert state.tails.size <= 10_000
    stream = state.streams.get(key("a"))
    assert stream is not None
    assert stream.size == 18 * 20_000
