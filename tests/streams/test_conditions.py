"""Conditional writes: `If-Match` as the machine decides it (RFC 9110 section 13.1.1)."""

from __future__ import annotations

import pytest

from streamd.streams.commands import Append, Create, CreateBucket, Delete, DeleteBucket, Result
from streamd.streams.etags import parse_tag, range_tag, state_tag
from streamd.streams.model import ForkRequest, IfMatch, Settings, Stream, Version
from streamd.streams.offsets import Position
from tests.streams.driver import JSON, TEXT, Driver, key

ANY = IfMatch()
NONE = IfMatch(())


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.create(body=b"one")
    return driver


def now(driver: Driver, name: str = "s") -> IfMatch:
    return IfMatch((driver.stream(name).version(),))


def test_a_write_succeeds_while_the_stream_is_unchanged(driver: Driver) -> None:
    before = now(driver)
    assert driver.append(b"two", if_match=before).result is Result.APPENDED
    refused = driver.append(b"three", if_match=before)
    assert (refused.result, refused.tail) == (Result.PRECONDITION_FAILED, Position(2, 6))
    assert driver.append(b"three", if_match=now(driver)).result is Result.APPENDED
    assert driver.content() == b"onetwothree"


def test_one_of_several_versions_is_enough(driver: Driver) -> None:
    versions = (Version(9, 0, 0, False), driver.stream().version())
    assert driver.append(b"two", if_match=IfMatch(versions)).result is Result.APPENDED


def test_a_star_requires_only_an_existing_stream(driver: Driver) -> None:
    assert driver.append(b"two", if_match=ANY).result is Result.APPENDED
    assert driver.append(b"x", "absent", if_match=ANY).result is Result.PRECONDITION_FAILED


def test_a_condition_without_a_tag_of_ours_never_holds(driver: Driver) -> None:
    assert driver.append(b"two", if_match=NONE).result is Result.PRECONDITION_FAILED


def test_a_refused_append_changes_nothing(driver: Driver) -> None:
    before = driver.stream().version()
    refused = driver.append(b"x", close=True, seq="9", producer=("p", 0, 0), if_match=NONE)
    assert refused.result is Result.PRECONDITION_FAILED
    assert driver.stream().version() == before
    assert driver.append(b"x", seq="1", producer=("p", 0, 0)).result is Result.APPENDED


def test_closing_is_a_change(driver: Driver) -> None:
    before = now(driver)
    driver.close()
    refused = driver.do(Append(key("s"), "", b"", [], True, if_match=before))
    assert refused.result is Result.PRECONDITION_FAILED
    again = driver.do(Append(key("s"), "", b"", [], True, if_match=now(driver)))
    assert again.result is Result.CLOSED


def test_other_refusals_come_before_the_condition(driver: Driver) -> None:
    driver.append(b"x", seq="5", producer=("p", 1, 0))
    assert driver.append(b"1", content_type=JSON, if_match=NONE).result is (
        Result.CONTENT_TYPE_DIFFERS
    )
    assert driver.append(b"x", seq="4", if_match=NONE).result is Result.SEQ_REGRESSION
    stale = driver.append(b"x", producer=("p", 0, 0), if_match=NONE)
    assert stale.result is Result.EPOCH_STALE
    driver.close()
    assert driver.append(b"x", if_match=NONE).result is Result.STREAM_CLOSED


def test_a_producers_retry_gets_its_first_answer_though_its_condition_fails_now(
    driver: Driver,
) -> None:
    before = now(driver)
    first = driver.append(b"two", producer=("p", 0, 0), if_match=before)
    driver.append(b"other")
    retry = driver.append(b"two", producer=("p", 0, 0), if_match=before)
    assert retry.result is Result.DUPLICATE
    assert (retry.tail, retry.incarnation) == (first.tail, first.incarnation)
    assert driver.content() == b"onetwoother"


def test_a_condition_on_an_absent_stream_fails_before_anything_is_created(driver: Driver) -> None:
    create = Create(key("new"), Settings(TEXT), if_match=ANY)
    assert driver.do(create).result is Result.PRECONDITION_FAILED
    assert driver.do(Delete(key("new"), ANY)).result is Result.PRECONDITION_FAILED
    assert driver.find("new") is None
    elsewhere = Create(key("new", "new"), Settings(TEXT), implicit_bucket=True, if_match=ANY)
    assert driver.do(elsewhere).result is Result.PRECONDITION_FAILED
    assert driver.state.buckets.get(b"new") is None


def test_an_absent_bucket_is_refused_before_the_condition(driver: Driver) -> None:
    elsewhere = key("s", "nowhere")
    for command in (
        Append(elsewhere, TEXT, b"x", [1], if_match=ANY),
        Delete(elsewhere, ANY),
        Create(elsewhere, Settings(TEXT), if_match=ANY),
    ):
        assert driver.do(command).result is Result.BUCKET_NOT_FOUND


def test_a_repeated_creation_may_have_a_condition(driver: Driver) -> None:
    for condition, result in (
        (ANY, Result.EXISTS),
        (now(driver), Result.EXISTS),
        (NONE, Result.PRECONDITION_FAILED),
    ):
        again = Create(key("s"), Settings(TEXT), if_match=condition)
        assert driver.do(again).result is result
        differing = Create(key("s"), Settings(JSON), if_match=condition)
        assert driver.do(differing).result is Result.SETTINGS_DIFFER


def test_a_forks_version_is_not_its_sources(driver: Driver) -> None:
    driver.fork("f", "s")
    assert driver.stream("f").tail == driver.stream("s").tail
    assert driver.append(b"x", "f", if_match=now(driver, "s")).result is Result.PRECONDITION_FAILED
    assert driver.append(b"x", "f", if_match=now(driver, "f")).result is Result.APPENDED


def test_a_refused_fork_keeps_no_reference_to_its_source(driver: Driver) -> None:
    fork = Settings(fork=ForkRequest(key("s")))
    assert driver.do(Create(key("f"), fork, if_match=ANY)).result is Result.PRECONDITION_FAILED
    assert driver.stream().forks == 0


def test_a_recreated_stream_has_another_version(driver: Driver) -> None:
    before = now(driver)
    driver.delete()
    driver.create(body=b"one")
    assert driver.do(Delete(key("s"), before)).result is Result.PRECONDITION_FAILED
    assert driver.do(Delete(key("s"), now(driver))).result is Result.DELETED


def test_a_stream_kept_for_its_forks_is_absent_to_conditions(driver: Driver) -> None:
    before = now(driver)
    driver.fork("f", "s")
    driver.delete()
    assert driver.append(b"x", if_match=before).result is Result.PRECONDITION_FAILED


# -- tags -------------------------------------------------------------------------------------


def a_stream(driver: Driver) -> Stream:
    driver.append(b"two")
    return driver.stream()


def test_the_tag_of_a_read_of_everything_is_the_streams_tag(driver: Driver) -> None:
    stream = a_stream(driver)
    read = range_tag(stream.stream_id, Position(0, 0), stream.tail, stream.closed)
    assert read == state_tag(stream.stream_id, stream.tail.token(), stream.closed)


def test_a_tag_names_the_version_whatever_part_was_read(driver: Driver) -> None:
    stream = a_stream(driver)
    for start in (Position(0, 0), Position(1, 3), stream.tail):
        for closed in (False, True):
            tag = range_tag(stream.stream_id, start, stream.tail, closed)
            assert parse_tag(tag) == Version(stream.stream_id, *stream.tail, closed)


@pytest.mark.parametrize(
    "tag", [b"", b'""', b'"x"', b"1:2:3", b'W/"1:%016d_%016d:%016d_%016d"' % (0, 0, 0, 0)]
)
def test_other_tags_name_nothing(tag: bytes) -> None:
    assert parse_tag(tag) is None


# -- buckets ----------------------------------------------------------------------------------


def test_a_bucket_is_deleted_once_it_is_empty(driver: Driver) -> None:
    assert driver.do(DeleteBucket(b"b")).result is Result.BUCKET_NOT_EMPTY
    driver.delete()
    assert driver.do(DeleteBucket(b"b")).result is Result.DELETED
    assert driver.do(DeleteBucket(b"b")).result is Result.BUCKET_NOT_FOUND
    assert driver.do(Create(key("s"), Settings(TEXT))).result is Result.BUCKET_NOT_FOUND
    assert driver.do(CreateBucket(b"b")).result is Result.CREATED


def test_a_bucket_stays_while_forks_elsewhere_read_its_streams(driver: Driver) -> None:
    fork = Settings(fork=ForkRequest(key("s")))
    driver.do(Create(key("f", "other"), fork, implicit_bucket=True))
    driver.delete()
    bucket = driver.state.buckets.get(b"b")
    assert bucket is not None
    assert (bucket.streams, bucket.hidden) == (1, 1)
    assert driver.do(DeleteBucket(b"b")).result is Result.BUCKET_NOT_EMPTY
    driver.do(Delete(key("f", "other")))
    assert (bucket.streams, bucket.hidden) == (0, 0)
    assert driver.do(DeleteBucket(b"b")).result is Result.DELETED
