"""Forks: streams that begin with a prefix of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamd.streams import keys
from streamd.streams.chunks import Window
from streamd.streams.commands import Result
from streamd.streams.model import Extent
from streamd.streams.offsets import START, Position
from streamd.streams.queries.reading import gather
from tests.streams.driver import JSON, TEXT, Driver, key


@pytest.fixture(params=["in memory", "in the store", "in the cold store"])
def driver(request: pytest.FixtureRequest) -> Driver:
    """A text stream and a JSON stream to fork, their records in memory or only in a store."""
    driver = Driver()
    driver.create("text")
    driver.append(b"hello", "text")
    driver.append(b"world", "text")
    driver.create("json", JSON)
    driver.append(b"[1, 22, 333]", "json", JSON)
    driver.append(b"4", "json", JSON)
    if request.param == "in the store":
        driver.flush()
        driver.reopen()
    elif request.param == "in the cold store":
        driver.flush_cold()
        assert not [row for row in driver.store.rows if row[:1] == keys.CHUNK]
    return driver


def forks_of(driver: Driver, name: str) -> int:
    return driver.stream(name).forks


# -- where a fork begins ----------------------------------------------------------------------


def test_a_fork_without_an_offset_begins_at_the_tail(driver: Driver) -> None:
    outcome = driver.fork("f", "text")
    assert (outcome.result, outcome.tail) == (Result.CREATED, Position(2, 10))
    assert driver.content("f") == b"helloworld"


def test_a_fork_at_an_offset_has_the_records_before_it(driver: Driver) -> None:
    assert driver.fork("f", "text", Position(1, 5)).tail == Position(1, 5)
    assert driver.content("f") == b"hello"


def test_a_fork_at_the_start_has_nothing_of_its_source(driver: Driver) -> None:
    assert driver.fork("f", "text", START).tail == START
    driver.append(b"own", "f")
    assert driver.content("f") == b"own"
    assert driver.stream("f").extents == ()


def test_a_forks_offsets_continue_its_sources(driver: Driver) -> None:
    driver.fork("f", "text", Position(1, 5))
    assert driver.append(b"!!", "f").tail == Position(2, 7)
    assert driver.boundaries("f") == [START, Position(1, 5), Position(2, 7)]
    assert driver.content("f", Position(1, 5)) == b"!!"


def test_fork_and_source_grow_apart(driver: Driver) -> None:
    driver.fork("f", "text")
    driver.append(b"+source", "text")
    driver.append(b"+fork", "f")
    assert driver.content("text") == b"helloworld+source"
    assert driver.content("f") == b"helloworld+fork"


def test_a_fork_may_bring_its_first_records(driver: Driver) -> None:
    outcome = driver.fork("f", "text", Position(1, 5), content_type=TEXT, body=b"!")
    assert outcome.tail == Position(2, 6)
    assert driver.content("f") == b"hello!"


def test_a_sub_offset_counts_messages_of_json(driver: Driver) -> None:
    assert driver.fork("f", "json", START, 2).tail == Position(2, 5)
    assert driver.content("f") == b"1,22,"
    assert driver.fork("all", "json", START, 3).tail == Position(3, 9)


def test_a_sub_offset_counts_from_an_offset_within_an_append(driver: Driver) -> None:
    assert driver.fork("f", "json", Position(1, 2), 2).tail == Position(3, 9)
    assert driver.fork("g", "json", Position(1, 2), 3).result is Result.FORK_SUB_OFFSET_INVALID


def test_a_sub_offset_counts_bytes_of_anything_else(driver: Driver) -> None:
    assert driver.fork("f", "text", Position(1, 5), 3).tail == Position(2, 8)
    assert driver.content("f") == b"hellowor"
    driver.append(b"k", "f")
    assert driver.boundaries("f") == [START, Position(1, 5), Position(2, 8), Position(3, 9)]


def test_a_sub_offset_of_a_whole_append_is_its_end(driver: Driver) -> None:
    driver.fork("f", "text", START, 5)
    assert driver.stream("f").tail == Position(1, 5)


@pytest.mark.parametrize(
    ("source", "offset", "sub_offset"),
    [("json", START, 4), ("text", START, 6), ("text", Position(2, 10), 1), ("text", None, 1)],
)
def test_a_sub_offset_stays_within_one_append(
    driver: Driver, source: str, offset: Position | None, sub_offset: int
) -> None:
    outcome = driver.fork("f", source, offset, sub_offset)
    assert outcome.result is Result.FORK_SUB_OFFSET_INVALID
    assert forks_of(driver, source) == 0


@pytest.mark.parametrize(
    ("source", "cut_as", "result"),
    [
        ("json", JSON, Result.CREATED),
        ("json", TEXT, Result.STALE),
        ("text", JSON, Result.STALE),
        ("text", "application/octet-stream", Result.CREATED),
    ],
)
def test_a_body_split_for_another_kind_of_source_must_be_split_again(
    driver: Driver, source: str, cut_as: str, result: Result
) -> None:
    assert driver.fork("f", source, body=b"[5]", cut_as=cut_as).result is result
    assert forks_of(driver, source) == (result is Result.CREATED)


# -- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [(0, 1), (1, 4), (1, 6), (2, 9), (2, 11), (3, 10), (3, 15)])
def test_an_offset_that_is_not_of_the_source_is_refused(
    driver: Driver, offset: tuple[int, int]
) -> None:
    assert driver.fork("f", "text", Position(*offset)).result is Result.FORK_OFFSET_INVALID


def test_refused_forks_leave_no_reference(driver: Driver) -> None:
    refusals = [
        driver.fork("f", "absent"),
        driver.fork("f", "f"),
        driver.fork("f", "text", Position(1, 4)),
        driver.fork("f", "text", START, 6),
        driver.fork("f", "text", content_type=JSON),
        driver.fork("json", "text"),
    ]
    assert [outcome.result for outcome in refusals] == [
        Result.SOURCE_NOT_FOUND,
        Result.SOURCE_NOT_FOUND,
        Result.FORK_OFFSET_INVALID,
        Result.FORK_SUB_OFFSET_INVALID,
        Result.CONTENT_TYPE_DIFFERS,
        Result.SETTINGS_DIFFER,
    ]
    assert driver.find("f") is None
    assert forks_of(driver, "text") == 0
    assert driver.state.header.streams == 2
    assert driver.delete("text") is Result.DELETED
    assert driver.find("text") is None


def test_a_deleted_source_and_an_expired_one_cannot_be_forked(driver: Driver) -> None:
    driver.fork("f", "text")
    driver.delete("text")
    assert driver.fork("g", "text").result is Result.SOURCE_GONE
    driver.create("brief", ttl_ms=10)
    driver.now_ms += 10
    assert driver.fork("g", "brief").result is Result.SOURCE_NOT_FOUND


# -- settings ---------------------------------------------------------------------------------


def test_a_fork_inherits_the_type_it_does_not_name(driver: Driver) -> None:
    assert driver.fork("f", "json").content_type == JSON
    assert driver.fork("g", "text", content_type="text/plain; charset=utf-8").content_type == (
        "text/plain; charset=utf-8"
    )


def test_a_fork_inherits_a_window_that_restarts(driver: Driver) -> None:
    driver.create("brief", ttl_ms=1000)
    driver.now_ms += 600
    driver.fork("f", "brief")
    assert driver.stream("f").expiry_ms() == driver.now_ms + 1000
    driver.now_ms += 400
    assert driver.append(b"x", "brief").result is Result.NOT_FOUND
    assert driver.append(b"x", "f").result is Result.APPENDED


def test_a_fork_inherits_a_fixed_end(driver: Driver) -> None:
    driver.create("brief", expires_at_ms=driver.now_ms + 1000)
    driver.fork("f", "brief")
    stream = driver.stream("f")
    assert (stream.expires_at_ms, stream.expires_at) == (driver.now_ms + 1000, "as given")


def test_a_fork_may_name_its_own_window(driver: Driver) -> None:
    driver.create("brief", expires_at_ms=driver.now_ms + 1000)
    driver.fork("f", "brief", ttl_ms=9000)
    assert driver.stream("f").expiry_ms() == driver.now_ms + 9000
    assert driver.stream("f").expires_at_ms is None


def test_a_fork_of_a_closed_stream_is_open(driver: Driver) -> None:
    driver.close("text")
    assert not driver.fork("f", "text").closed
    assert driver.append(b"!", "f").result is Result.APPENDED


def test_a_fork_knows_no_producers_and_no_stream_seq_of_its_source(driver: Driver) -> None:
    driver.append(b"x", "text", seq="9", producer=("p", 5, 0))
    driver.fork("f", "text")
    outcome = driver.append(b"y", "f", seq="1", producer=("p", 0, 0))
    assert outcome.result is Result.APPENDED


def test_a_repeated_fork_request_finds_the_fork_after_the_source_has_grown(driver: Driver) -> None:
    driver.fork("f", "text")
    driver.append(b"more", "text")
    assert driver.fork("f", "text").result is Result.EXISTS
    assert driver.fork("f", "text", Position(2, 10)).result is Result.SETTINGS_DIFFER
    assert driver.fork("f", "json").result is Result.SETTINGS_DIFFER
    assert forks_of(driver, "text") == 1


# -- deleted sources --------------------------------------------------------------------------


def test_a_deleted_source_refuses_commands_but_keeps_records_for_forks(driver: Driver) -> None:
    driver.fork("f", "text", Position(1, 5), 2)
    assert driver.delete("text") is Result.DELETED
    assert driver.delete("text") is Result.GONE
    assert driver.append(b"x", "text").result is Result.GONE
    assert driver.create("text").result is Result.IN_USE_BY_FORKS
    assert driver.content("f") == b"hellowo"


def test_the_last_fork_removes_a_deleted_source_with_it(driver: Driver) -> None:
    driver.fork("f", "text")
    driver.fork("g", "text")
    driver.delete("text")
    driver.delete("f")
    assert driver.find("text") is not None
    driver.delete("g")
    assert driver.find("text") is None
    assert driver.state.header.streams == 1
    assert driver.create("text").result is Result.CREATED


def test_an_expired_source_is_kept_for_its_forks(driver: Driver) -> None:
    driver.create("brief", body=b"x", ttl_ms=1000)
    driver.fork("f", "brief", ttl_ms=5000)
    driver.now_ms += 1000
    assert driver.create("brief").result is Result.IN_USE_BY_FORKS
    assert driver.content("f") == b"x"
    driver.now_ms += 4000
    assert driver.append(b"y", "f").result is Result.NOT_FOUND
    assert driver.find("brief") is None


def test_a_live_source_outlives_its_forks(driver: Driver) -> None:
    driver.fork("f", "text")
    driver.delete("f")
    assert forks_of(driver, "text") == 0
    assert driver.content("text") == b"helloworld"


# -- chains -----------------------------------------------------------------------------------


def test_a_fork_of_a_fork_reads_through_both(driver: Driver) -> None:
    driver.fork("b", "text", Position(1, 5))
    driver.append(b"-b", "b")
    driver.fork("c", "b")
    driver.append(b"-c", "c")
    driver.append(b"-later", "b")
    assert driver.content("c") == b"hello-b-c"
    for at in driver.boundaries("c"):
        assert driver.content("c", at) == b"hello-b-c"[at.byte :]


def test_a_fork_of_a_fork_may_begin_in_the_inherited_part(driver: Driver) -> None:
    driver.fork("b", "text", Position(2, 10))
    driver.append(b"-b", "b")
    driver.fork("c", "b", Position(1, 5))
    assert driver.content("c") == b"hello"
    [extent] = driver.stream("c").extents
    assert extent.stream_id == driver.stream("text").stream_id


def test_a_cut_record_is_cut_for_the_forks_of_the_fork_too(driver: Driver) -> None:
    driver.fork("b", "text", Position(1, 5), 3)
    driver.append(b"-b", "b")
    assert driver.fork("c", "b", Position(1, 5), 4).result is Result.FORK_SUB_OFFSET_INVALID
    assert driver.fork("c", "b", Position(2, 10)).result is Result.FORK_OFFSET_INVALID
    driver.fork("c", "b", Position(1, 5), 2)
    driver.fork("d", "b", Position(2, 8))
    driver.fork("e", "b", Position(2, 8), 1)
    assert driver.content("c") == b"hellowo"
    assert driver.content("d") == b"hellowor"
    assert driver.content("e") == b"hellowor-"


def test_the_border_of_a_fork_cuts_an_append_of_json(driver: Driver) -> None:
    driver.fork("b", "json", Position(2, 5))
    driver.append(b"[7, 8]", "b", JSON)
    assert driver.fork("c", "b", START, 3).result is Result.FORK_SUB_OFFSET_INVALID
    driver.fork("c", "b", START, 2)
    driver.fork("d", "b", Position(2, 5), 1)
    assert driver.content("c") == b"1,22,"
    assert driver.content("d") == b"1,22,7,"


def test_ancestors_are_removed_with_their_last_reader(driver: Driver) -> None:
    driver.fork("b", "text")
    driver.fork("c", "b")
    driver.fork("d", "c")
    for name in ("text", "b", "c"):
        assert driver.delete(name) is Result.DELETED
    assert driver.content("d") == b"helloworld"
    driver.delete("d")
    assert [driver.find(name) for name in ("text", "b", "c", "d")] == [None] * 4
    assert driver.state.header.streams == 1


def test_a_live_stream_within_a_chain_stops_the_removal(driver: Driver) -> None:
    driver.fork("b", "text")
    driver.fork("c", "b")
    driver.delete("text")
    driver.delete("c")
    assert driver.content("b") == b"helloworld"
    assert driver.stream("text").deleted


def test_a_long_chain_is_removed_in_one_go() -> None:
    driver = Driver()
    driver.create("0", body=b"x")
    length = 2_000
    for number in range(1, length):
        assert driver.fork(str(number), str(number - 1)).result is Result.CREATED
    for number in range(length - 1):
        assert driver.delete(str(number)) is Result.DELETED
    assert driver.state.header.streams == length
    assert driver.content(str(length - 1)) == b"x"
    driver.delete(str(length - 1))
    assert driver.state.header.streams == 0
    driver.flush()
    assert not [row for row in driver.store.rows if row[:1] == keys.STREAM]
    assert key("0") not in driver.store.rows


# -- forks of forks of forks ------------------------------------------------------------------


class _CountedLooks(tuple[Extent, ...]):
    """Segments that count how often one is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Extent]:
        for extent in super().__iter__():
            self.looks += 1
            yield extent


def test_a_long_ancestry_is_not_searched_for_each_record() -> None:
    depth = 1000
    driver = Driver()
    driver.create("0")
    driver.append(b"x", "0")
    for number in range(1, depth):
        driver.fork(str(number), str(number - 1))
        driver.append(b"x", str(number))
    youngest = driver.stream(str(depth - 1))
    extents = youngest.extents = _CountedLooks(youngest.extents)
    found = gather(youngest, Window(START, 2 * depth), driver.machine.state.tails.find)
    assert found is not None
    assert found.size == depth
    assert extents.looks < 20 * depth
