"""`streamd.client` against a real server: the same tests for blocking calls, asyncio and Trio."""

from __future__ import annotations

import inspect
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

import streamd.client as library
from streamd.client import Client, Stream
from streamd.client.core.reading import Live
from tests.client.unasync import TWINS
from tests.support.server_process import ServerProcess


@pytest.fixture
def stream(client: Client) -> Stream:
    """A stream that does not exist yet."""
    return client.stream(f"demo/{uuid4()}")


def content(stream: Stream, offset: str = library.START) -> bytes:
    return b"".join(chunk.data for chunk in stream.read(offset))


# --- a stream's life


def test_a_stream_is_created_once_and_confirmed_after_that(stream: Stream) -> None:
    made = stream.create("text/plain", ttl_s=3600, data="hi")
    assert (made.is_new, made.content_type, made.closed) == (True, "text/plain", False)
    assert stream.head().ttl_s == 3600
    again = stream.create("text/plain", ttl_s=3600)
    assert (again.is_new, again.next_offset, again.etag) == (False, made.next_offset, made.etag)
    assert content(stream) == b"hi"


def test_other_settings_of_an_existing_stream_are_refused(stream: Stream) -> None:
    stream.create("text/plain")
    with pytest.raises(library.AlreadyExists) as refused:
        stream.create("application/json")
    assert (refused.value.status, refused.value.code) == (409, "STREAM_EXISTS")


def test_a_stream_may_end_at_a_time_or_be_created_closed(client: Client, stream: Stream) -> None:
    ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert stream.create(expires_at=ends, closed=True, data=b"all").closed
    info = stream.head()
    assert (info.expires_at, info.closed) == (ends, True)
    with pytest.raises(library.StreamClosed):
        stream.append(b"more")


def test_appended_bytes_and_text_are_read_from_any_offset(stream: Stream) -> None:
    stream.create("text/plain")
    first = stream.append("grün ")
    last = stream.append(b"und blau", close=True)
    assert (first.closed, last.closed) == (False, True)
    assert content(stream).decode() == "grün und blau"
    assert content(stream, first.next_offset) == b"und blau"
    [chunk] = stream.read(last.next_offset)
    assert (chunk.data, chunk.closed, chunk.up_to_date) == (b"", True, True)


def test_a_long_stream_is_read_in_chunks(stream: Stream) -> None:
    stream.create()
    for number in range(4):
        stream.append(bytes([number]) * 50_000)
    chunks = list(stream.read(max_bytes=60_000))
    assert len(chunks) > 1
    assert b"".join(chunk.data for chunk in chunks) == content(stream)
    assert [chunk.up_to_date for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_json_messages_stay_apart_whatever_they_are(stream: Stream) -> None:
    stream.create("application/json")
    stream.append_json({"n": 1}, [2, 3], "four", None)
    stream.append('[5, {"six": 6}]')
    stream.append_many(["7", b"[8]"])
    assert list(stream.read_json()) == [{"n": 1}, [2, 3], "four", None, 5, {"six": 6}, 7, [8]]


def test_a_json_text_cannot_break_out_of_its_message(stream: Stream) -> None:
    stream.create("application/json")
    with pytest.raises(ValueError, match="JSON"):
        stream.append_many(["1, 2"])
    assert list(stream.read_json()) == []


def test_records_of_bytes_are_appended_together(stream: Stream) -> None:
    stream.create()
    before = stream.append(b"zero").next_offset
    after = stream.append_many([b"one", "two"]).next_offset
    assert (before[:16], after[:16]) == ("0000000000000001", "0000000000000003")
    with pytest.raises(ValueError, match="512"):
        stream.append_many([b"x"] * 513)
    assert content(stream) == b"zeroonetwo"


def test_records_of_bytes_are_appended_together_only_in_a_bucket(client: Client) -> None:
    stream = client.stream(str(uuid4()))
    stream.create()
    with pytest.raises(library.BadName, match="BUCKET/STREAM"):
        stream.append_many([b"a", b"b"])


def test_a_write_with_an_etag_fails_once_the_stream_has_changed(stream: Stream) -> None:
    etag = stream.create("text/plain").etag
    changed = stream.append("a", if_match=etag)
    with pytest.raises(library.PreconditionFailed) as failed:
        stream.append("b", if_match=etag)
    assert failed.value.etag == changed.etag
    with pytest.raises(library.PreconditionFailed):
        stream.close(if_match=etag)
    stream.delete(if_match=changed.etag)


def test_a_stream_sequence_must_grow(stream: Stream) -> None:
    stream.create("text/plain")
    stream.append("a", seq="b")
    with pytest.raises(library.SequenceConflict):
        stream.append("b", seq="a")


def test_a_closed_stream_says_where_it_ends(stream: Stream) -> None:
    stream.create("text/plain", data="all")
    closed = stream.close()
    assert stream.close() == closed, "closing again changes nothing"
    assert (closed.closed, stream.head().closed) == (True, True)


def test_what_does_not_exist_is_an_error_of_its_own(client: Client, stream: Stream) -> None:
    asks = (stream.head, stream.delete, lambda: stream.append(b"x"), lambda: list(stream.read()))
    for ask in asks:
        with pytest.raises(library.StreamNotFound) as refused:
            ask()
        assert (refused.value.status, refused.value.code) == (404, "STREAM_NOT_FOUND")
        assert isinstance(refused.value, library.StreamdError)
    with pytest.raises(library.BadName):
        client.stream("demo/../x")


@pytest.mark.parametrize(
    "urls", [[], "", "127.0.0.1:4437", "http://", "http://a:port", "http://a,", "ftp://a"]
)
@pytest.mark.parametrize("kind", [library.Client, library.AsyncClient])
def test_what_is_not_the_url_of_a_node_is_refused(kind: type[Client], urls: list[str]) -> None:
    with pytest.raises(ValueError, match=r"URL|host"):
        kind(urls)


def test_another_content_type_is_refused(stream: Stream) -> None:
    stream.create("text/plain")
    with pytest.raises(library.ContentTypeMismatch):
        stream.append_json(1)
    with pytest.raises(library.ContentTypeMismatch):
        stream.append(b"1", content_type="application/octet-stream")


def test_a_deleted_stream_is_gone(stream: Stream) -> None:
    stream.create()
    stream.delete()
    with pytest.raises(library.StreamNotFound):
        stream.head()


# --- following


@pytest.mark.parametrize("live", ["auto", "sse", "long-poll"])
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/octet-stream"])
def test_a_follower_sees_all_that_is_appended_until_the_close(
    client: Client, live: library.Live, kind: str
) -> None:
    stream = client.stream(f"demo/{uuid4()}")
    stream.create(kind, data=b"1")
    with stream.follow(live=live) as chunks:
        assert next(chunks).data.strip(b"[]") == b"1"
        stream.append(b"2")
        chunk = next(chunk for chunk in chunks if not chunk.empty)
        assert (chunk.data.strip(b"[]"), chunk.content_type) == (b"2", kind)
        stream.append(b"3", close=True)
        rest = list(chunks)
    assert b"".join(chunk.data.strip(b"[]") for chunk in rest) == b"3"
    assert (rest[-1].closed, rest[-1].next_offset) == (True, stream.head().next_offset)


def test_a_follower_may_begin_now_or_at_an_offset(stream: Stream) -> None:
    stream.create("application/json")
    after = stream.append_json(1).next_offset
    stream.append_json(2)
    with stream.follow(library.NOW) as now, stream.follow_json(after) as later:
        assert next(now).empty
        assert next(later) == 2
        stream.append_json(3, close=True)
        assert [message for chunk in now for message in chunk.json()] == [3]
        assert list(later) == [3]


def test_each_message_has_a_position_from_which_exactly_the_rest_is_read(stream: Stream) -> None:
    stream.create("application/json")
    stream.append_json("a", "b", "c")
    middle = stream.append_json("d", "e").next_offset
    stream.append_json("f", close=True)
    pairs = list(stream.read_json(offsets=True))
    assert [message for _, message in pairs] == list("abcdef")
    for count, (position, _) in enumerate(pairs, 1):
        rest = list("abcdef")[count:]
        assert list(stream.read_json(position)) == rest
        assert list(stream.follow_json(position)) == rest
        again = stream.follow_json(position, offsets=True)
        assert [message for _, message in again] == rest
    for position, message in stream.read_json(middle, offsets=True):
        assert (position, message) == (stream.head().next_offset, "f")


def test_positions_count_on_in_a_stream_that_grows(stream: Stream) -> None:
    stream.create("application/json")
    stream.append_json("a", "b")
    with stream.follow_json(offsets=True) as pairs:
        (first, _), _ = next(pairs), next(pairs)
        stream.append_json("c", "d", "e", close=True)
        positions = dict(reversed(pair) for pair in pairs)
    assert list(stream.read_json(first)) == list("bcde")
    assert list(stream.read_json(positions["c"])) == ["d", "e"]
    assert list(stream.read_json(positions["d"])) == ["e"]
    assert list(stream.read_json(positions["e"])) == []


def test_a_position_that_a_shorter_stream_cannot_have_is_refused(stream: Stream) -> None:
    stream.create("application/json")
    stream.append_json("a", "b", "c")
    position = list(stream.read_json(offsets=True))[1][0]
    stream.delete()
    stream.create("application/json", data=b'["x"]')
    with pytest.raises(library.StreamReplaced):
        list(stream.read_json(position))
    with pytest.raises(ValueError, match="not the position"):
        list(stream.read_json("-1,x"))


def test_text_is_followed_to_the_byte(stream: Stream) -> None:
    text = "one\r\ntwo\rä".encode()[:-1] + b"\xff"
    stream.create("text/plain")
    with stream.follow() as chunks:
        next(chunks)
        stream.append(text, close=True)
        assert b"".join(chunk.data for chunk in chunks) == text


def test_a_silent_stream_repeats_nothing(stream: Stream, client: Client) -> None:
    stream.create("application/json", closed=True, data=b"[1]")
    assert [(chunk.json(), chunk.closed) for chunk in stream.follow()] == [([1], True)]


def test_a_follower_learns_that_its_stream_was_deleted(stream: Stream) -> None:
    stream.create("application/json")
    with stream.follow() as chunks:
        next(chunks)
        stream.delete()
        with pytest.raises(library.StreamNotFound):
            list(chunks)


# --- forks, snapshots, buckets


def test_a_fork_begins_with_what_its_source_had(stream: Stream) -> None:
    stream.create("application/json")
    middle = stream.append_json(1, 2).next_offset
    stream.append_json(3, 4)
    name = f"demo/{uuid4()}"
    fork = stream.fork(name, at=middle, sub_offset=1, ttl_s=60)
    assert fork.info.is_new
    fork.append_json("own")
    assert list(fork.read_json()) == [1, 2, 3, "own"]
    assert (fork.head().ttl_s, fork.head().content_type) == (60, "application/json")
    assert list(stream.read_json()) == [1, 2, 3, 4]


def test_a_snapshot_replaces_what_it_covers(stream: Stream) -> None:
    stream.create("application/json")
    at = stream.append_json(1, 2).next_offset
    end = stream.append_json([3], 4).next_offset
    with pytest.raises(library.SnapshotNotFound):
        stream.snapshot.read()
    stream.snapshot.publish(at, '{"sum": 3}', content_type="application/json")
    assert stream.snapshot.read() == stream.snapshot.read(at)
    snapshot = stream.snapshot.read()
    assert (snapshot.offset, snapshot.content_type, snapshot.json()) == (
        at, "application/json", {"sum": 3},
    )  # fmt: skip
    with pytest.raises(library.OffsetGone) as gone:
        list(stream.read())
    assert gone.value.earliest_offset == at == stream.head().snapshot_offset
    found = stream.bootstrap()
    assert (found.snapshot, found.json(), found.next_offset) == (snapshot, [[3], 4], end)


@pytest.mark.long
def test_a_large_snapshot_is_sent_in_pieces(stream: Stream) -> None:
    stream.create()
    at = stream.append(b"x").next_offset
    pieces = [bytes([number]) * 1_000_000 for number in range(70)]
    stream.snapshot.publish(at, lambda: iter(pieces), content_type="a/b")
    assert stream.snapshot.read().data == b"".join(pieces)


def test_a_bootstrap_of_a_stream_without_a_snapshot_has_all_messages(stream: Stream) -> None:
    stream.create("text/plain")
    empty = stream.bootstrap()
    assert (empty.snapshot.offset, empty.snapshot.json(), empty.messages) == ("-1", None, [])
    stream.append("a")
    stream.append("b")
    found = stream.bootstrap()
    assert (found.messages, found.content_type) == ([b"a", b"b"], "text/plain")


def test_a_state_is_the_snapshot_and_all_that_comes_after_it(stream: Stream) -> None:
    stream.create("application/json")
    at = stream.append_json(1, 2).next_offset
    stream.append_json(3)
    stream.snapshot.publish(at, "3", content_type="application/json")
    with stream.state() as state:
        assert next(state) == library.Snapshot(at, "application/json", b"3")
        assert next(state).json() == [3]
        stream.append_json(4, close=True)
        rest = [message for chunk in state for message in chunk.json()]
    assert rest == [4]


def test_a_state_that_a_later_snapshot_has_overtaken_begins_again(stream: Stream) -> None:
    stream.create("application/json")
    at = stream.append_json(1).next_offset
    with stream.state(live="long-poll") as state:
        assert next(state) == library.Snapshot("-1", "", b"")
        stream.snapshot.publish(at, "1", content_type="application/json")
        stream.append_json(2, close=True)
        assert next(state).json() == 1, "the snapshot: what was to be read is gone"
        assert [message for chunk in state for message in chunk.json()] == [2]


def test_a_stream_without_a_bucket_has_a_state_and_no_snapshots(client: Client) -> None:
    stream = client.stream(str(uuid4()))
    stream.create("application/json", data="[1]", closed=True)
    assert [part.json() for part in stream.state()] == [None, [1]]
    for ask in (stream.bootstrap, stream.snapshot.read):
        with pytest.raises(library.BadName, match="BUCKET/STREAM"):
            ask()


def test_a_bucket_is_created_once_and_deleted_when_it_is_empty(client: Client) -> None:
    bucket = client.bucket(f"b-{uuid4()}")
    with pytest.raises(library.BucketNotFound):
        bucket.info()
    bucket.create()
    with pytest.raises(library.AlreadyExists):
        bucket.create()
    assert (bucket.info().streams, list(bucket.streams())) == (0, [])
    stream = client.stream(f"/{bucket.info().bucket_id}/one")
    etag = stream.create("text/plain", data="abc").etag
    [listed] = bucket.streams()
    assert (listed.tail_offset, listed.content_type, listed.etag) == (3, "text/plain", etag)
    with pytest.raises(library.BucketNotEmpty):
        bucket.delete()
    client.stream(listed.path).delete()
    bucket.delete()
    with pytest.raises(library.BucketNotFound):
        bucket.delete()


CROWD = [f"run-{number:04}" for number in range(1005)]


@pytest.mark.parametrize(
    ("live", "successors"), [("sse", 1), ("sse", 2), ("sse", 3), ("long-poll", 3)]
)
def test_a_follower_does_not_take_another_stream_of_the_name_for_its_own(
    stream: Stream, live: Live, successors: int
) -> None:
    """Also where the offset is one of the other stream, too."""
    stream.create("application/json")
    stream.append_json(1, 1)
    with stream.follow(live=live) as chunks:
        assert next(chunks).json() == [1, 1]
        stream.delete()
        stream.create("application/json")
        stream.append_json(*[2] * successors)
        with pytest.raises((library.StreamReplaced, library.InvalidRequest)):
            list(chunks)


@pytest.fixture(scope="module")
def crowded(server: ServerProcess) -> str:
    """A bucket with more streams than a page has."""
    with Client(server.url) as client:
        for name in CROWD:
            client.stream(f"crowded/{name}").create()
    return "crowded"


def test_a_listing_of_any_length_is_iterated_over(client: Client, crowded: str) -> None:
    bucket = client.bucket(crowded)
    assert [stream.stream_id for stream in bucket.streams()] == CROWD
    some = bucket.streams(prefix="run-10", after="run-1002")
    assert [stream.stream_id for stream in some] == ["run-1003", "run-1004"]


# --- surfaces and imports


def _signature(found: object) -> str:
    """Parameters and defaults, without what differs by design."""
    assert callable(found)
    signature = inspect.signature(found)
    parameters = [
        parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters))


def _public(cls: type) -> dict[str, object]:
    """Names by what both kinds call them."""
    return {
        name.replace("__a", "__", 1) if name.startswith("__a") else name: value
        for name, value in vars(cls).items()
        if not name.startswith("_") or name in ("__init__", "__iter__", "__aiter__")
    }


GENERATED = {f"streamd.client.{name}" for name in TWINS.values()}
WRITTEN_TWICE = [
    name
    for name in library.__all__
    if f"Async{name}" in library.__all__ and getattr(library, name).__module__ not in GENERATED
]


@pytest.mark.parametrize("name", WRITTEN_TWICE)
def test_what_is_written_twice_has_the_same_surface_for_both_kinds(name: str) -> None:
    blocking, other = getattr(library, name), getattr(library, f"Async{name}")
    assert _told(blocking) == _told(other)
    one, two = _public(blocking), _public(other)
    assert one.keys() == two.keys()
    for method, found in one.items():
        if isinstance(found, property):
            assert isinstance(two[method], property)
            continue
        assert _signature(found) == _signature(two[method]), method
        assert _told(found) == _told(two[method]), method


def _told(found: object) -> str:
    """The documentation without its example."""
    return (inspect.getdoc(found) or "").partition(">>>")[0].strip()


# All of streamd that may come with the client: pure parts, without the server.
SHARED = {
    "streamd", "streamd.process", "streamd.process.redaction", "streamd.protocol",
    "streamd.protocol.headers", "streamd.protocol.problems", "streamd.streams",
    "streamd.streams.bounds", "streamd.streams.content", "streamd.streams.keys",
}  # fmt: skip
_IMPORTS = "import sys, streamd.client; print('\\n'.join(sys.modules))"


def test_the_blocking_client_loads_no_server_and_no_event_loop() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())
    ours = {name for name in loaded if name.split(".")[0] == "streamd"}
    assert {name for name in ours if not name.startswith("streamd.client")} == SHARED
    assert not loaded & {"trio", "anyio", "asyncio", "quart", "hypercorn", "minio", "plyvel"}
    # Slow to import, and of no use before there is a client.
    assert not loaded & {"httpx", "httpcore", "rich", "click", "zstandard", "ssl", "email.message"}


def test_the_package_is_typed() -> None:
    assert (Path(library.__file__).parents[1] / "py.typed").exists()
