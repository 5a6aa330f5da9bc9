"""A stream remembers a limited number of producers, and ends those that are idle for long."""

from __future__ import annotations

import msgspec
import pytest

from streamd.streams import keys, producers
from streamd.streams.commands import Append, EndProducers, Outcome, Result
from streamd.streams.model import ProducerStamp, ProducerState
from tests.streams.driver import TEXT, Driver, key

IDLE_MS = producers.MIN_IDLE_MS


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A stream that may have four producers, and is crowded with three."""
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 4)
    monkeypatch.setattr(producers, "CROWDED", 3)
    driver = Driver()
    driver.create()
    return driver


def write(
    driver: Driver,
    producer_id: str,
    seq: int = 0,
    epoch: int = 0,
    *,
    counted: bool = True,
    data: bytes = b"x",
) -> Outcome:
    stamp = ProducerStamp(producer_id, epoch, seq, counted)
    lengths = [len(data)] if data else []
    kind = TEXT if data else ""
    return driver.do(Append(key("s"), kind, data, lengths, not data, producer=stamp))


def fill(driver: Driver) -> None:
    for producer_id in "abcd":
        assert write(driver, producer_id).result is Result.APPENDED


def end(driver: Driver, *ids: str) -> None:
    assert driver.do(EndProducers(key("s"), list(ids))).result is Result.DONE


def known(driver: Driver) -> set[str]:
    """The producers that are remembered, of which the stream counts as many as it says."""
    driver.flush()
    stream = driver.state.streams.get(key("s"))
    assert stream is not None
    start, stop = keys.id_range(keys.PRODUCER, stream.stream_id)
    decoder = msgspec.msgpack.Decoder(ProducerState)
    rows = {
        keys.producer_in(row): decoder.decode(raw)
        for row, raw in driver.store.scan(start, stop, limit=100)
    }
    assert stream.producers == sum(row.touched_ms > 0 for row in rows.values())
    return set(rows)


def test_a_producer_too_many_is_refused_and_changes_nothing(driver: Driver) -> None:
    fill(driver)
    before = driver.content()
    assert write(driver, "e").result is Result.TOO_MANY_PRODUCERS
    assert write(driver, "e", data=b"").result is Result.TOO_MANY_PRODUCERS
    assert driver.content() == before
    assert known(driver) == set("abcd")


def test_known_producers_and_plain_appends_continue_when_there_are_too_many(driver: Driver) -> None:
    fill(driver)
    assert write(driver, "a", 1).result is Result.APPENDED
    assert write(driver, "b", 0).result is Result.DUPLICATE
    assert write(driver, "c", 0, epoch=1).result is Result.APPENDED
    assert driver.append(b"y").result is Result.APPENDED
    assert known(driver) == set("abcd")


def test_an_idle_producer_makes_room_for_another(driver: Driver) -> None:
    fill(driver)
    driver.now_ms += IDLE_MS
    write(driver, "a", 1)
    end(driver, "a", "b", "nobody")
    assert known(driver) == set("acd")
    assert write(driver, "e").result is Result.APPENDED
    assert write(driver, "f").result is Result.TOO_MANY_PRODUCERS


def test_no_producer_ends_before_it_was_idle_for_long(driver: Driver) -> None:
    """Until then its request, sent again, is recognised."""
    fill(driver)
    driver.now_ms += IDLE_MS - 1
    end(driver, *"abcd")
    assert write(driver, "a", 0).result is Result.DUPLICATE
    driver.now_ms += 1
    end(driver, *"abcd")
    assert known(driver) == set()


def test_a_producer_that_has_ended_must_begin_again(driver: Driver) -> None:
    """Its next request is a gap: nothing is appended twice, and the client learns it."""
    fill(driver)
    write(driver, "a", 1)
    driver.now_ms += IDLE_MS
    end(driver, "a")
    content = driver.content()
    for seq in (1, 2):
        gap = write(driver, "a", seq)
        assert (gap.result, gap.seq) == (Result.SEQ_GAP, 0)
    assert driver.content() == content
    assert write(driver, "a", 0, epoch=1).result is Result.APPENDED


def test_producers_count_from_when_all_members_count_them(driver: Driver) -> None:
    for producer_id in "uvwxyz":
        assert write(driver, producer_id, counted=False).result is Result.APPENDED
    fill(driver)
    assert write(driver, "u", 1, counted=False).result is Result.APPENDED
    assert write(driver, "new", counted=False).result is Result.APPENDED
    assert write(driver, "v", 1).result is Result.APPENDED, "a known one is never refused"
    assert write(driver, "e").result is Result.TOO_MANY_PRODUCERS
    assert known(driver) == {*"abcduvwxyz", "new"}
    # One that was counted stays so.
    write(driver, "a", 1, counted=False)
    driver.now_ms += IDLE_MS
    end(driver, *"abcduwxyz")
    assert known(driver) == {*"uvwxyz", "new"}


def test_a_close_can_be_repeated_wherever_it_was_counted(driver: Driver) -> None:
    assert write(driver, "a", data=b"", counted=False).result is Result.CLOSED
    assert write(driver, "a", data=b"").closed
    assert write(driver, "a", data=b"", counted=False).closed


def test_streams_with_many_producers_are_noted_for_the_leader(driver: Driver) -> None:
    state = driver.state
    write(driver, "a")
    write(driver, "b")
    assert state.crowded == set()
    write(driver, "c")
    assert state.crowded == {key("s")}
    state.crowded.clear()
    write(driver, "c", 1)
    assert state.crowded == set()
    write(driver, "d")
    state.crowded.clear()
    write(driver, "e")
    assert state.crowded == {key("s")}


def test_the_notes_are_bounded(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "_MAX_NOTED", 1)
    driver.state.crowded.add(b"another")
    fill(driver)
    assert driver.state.crowded == {b"another"}


def test_what_is_gone_has_no_producers_to_end(driver: Driver) -> None:
    assert driver.do(EndProducers(key("none"), ["a"])).result is Result.DONE
    assert driver.do(EndProducers(b"no bucket", ["a"])).result is Result.DONE


def test_a_fork_has_no_producers_of_its_source(driver: Driver) -> None:
    fill(driver)
    driver.fork("f", "s")
    stream = driver.state.streams.get(key("f"))
    assert stream is not None
    assert stream.producers == 0


def test_the_bound_outlasts_a_restart(driver: Driver) -> None:
    fill(driver)
    driver.flush()
    driver.reopen()
    assert write(driver, "e").result is Result.TOO_MANY_PRODUCERS
    assert driver.state.crowded == {key("s")}
