"""The client's parsers, however the bytes are split in transit."""

from __future__ import annotations

import json
import signal
from base64 import b64decode
from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.client.core.multipart import (
    Malformed,
    PartData,
    PartEnd,
    PartStart,
    boundary_of,
    parse_parts,
)
from streamd.client.core.sse import Event, Events, EventTooLarge
from streamd.client.names import BadName, bucket_path, parse_name
from streamd.commands import lines
from streamd.commands.lines import LineTooLong, NotJson, bodies_of_lines
from streamd.commands.messages import JsonText, LastLines, json_line, plain
from streamd.commands.stopping import Stopped
from tests.client.flows import emitted

cuts = st.lists(st.integers(1, 7), max_size=40)


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
    yield data[at:]


def source(*pieces: bytes | None) -> lines.Read:
    """Input that arrives in these pieces; `None` is a pause."""
    coming = iter([*pieces, b""])

    def read(timeout_s: float | None) -> bytes | None:
        piece = next(coming)
        return next(coming) if piece is None and timeout_s is None else piece

    return read


# --- names


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("hello", "/v1/stream/hello"),
        ("demo/hello", "/v1/stream/demo/hello"),
        ("demo/a/b", "/v1/stream/demo/a/b"),
        ("/demo/hello", "/demo/hello"),
        ("/v1/stream/hello", "/v1/stream/hello"),
        ("grün/a b?c#d%", "/v1/stream/gr%C3%BCn/a%20b%3Fc%23d%25"),
        ("/demo/a%20b", "/demo/a%20b"),
        ("demo/./a", "/v1/stream/demo/%2E/a"),
        ("/demo/.", "/demo/%2E"),
        ("demo/..a", "/v1/stream/demo/..a"),
    ],
)
def test_a_name_is_a_path_below_v1_unless_it_is_a_path_itself(written: str, path: str) -> None:
    assert parse_name(written).path == path


@pytest.mark.parametrize(
    "written",
    [
        "",
        "/",
        "a//b",
        "a/",
        "http://127.0.0.1/v1/stream/a",
        "..",
        "a/../b",
        "/demo/..",
        "/%2e%2e/x",
    ],
)
def test_a_name_that_no_stream_can_have_is_refused(written: str) -> None:
    with pytest.raises(BadName):
        parse_name(written)


def test_snapshots_use_the_bucketed_surface_for_every_form_of_a_name() -> None:
    for written in ("demo/hello", "/demo/hello", "/v1/stream/demo/hello"):
        assert parse_name(written).bucketed_path() == "/demo/hello"
    for written in ("hello", "demo/a/b"):
        with pytest.raises(BadName, match="BUCKET/STREAM"):
            parse_name(written).bucketed_path()


def test_a_bucket_may_be_written_with_a_slash() -> None:
    assert bucket_path("demo") == bucket_path("demo/") == "/demo"
    for written in ("", "/", "a/b", ".."):
        with pytest.raises(BadName):
            bucket_path(written)


# --- server-sent events


@given(cuts, st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_do_not_depend_on_how_the_bytes_are_split(sizes: list[int], end: bytes) -> None:
    wire = (
        b":\n\nevent: data\ndata:one\ndata: two\ndata\n\nid: 7\ndata:{}\n\n"
        b"event: nothing\n\nevent: cut\ndata: off"
    ).replace(b"\n", end)
    events = Events()
    assert [event for piece in cut(wire, sizes) for event in events.feed(piece)] == [
        Event("data", b"one\ntwo\n"),
        Event("message", b"{}"),
    ]


@pytest.mark.parametrize("sizes", [[], [1] * 20])
def test_a_byte_order_mark_at_the_start_of_events_is_skipped(sizes: list[int]) -> None:
    """WHATWG HTML, section 9.2.6: one, and no other."""
    wire = b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\ndata: \xef\xbb\xbfc\n\n"
    events = Events()
    assert [event.data for piece in cut(wire, sizes) for event in events.feed(piece)] == [
        b"a",
        b"\xef\xbb\xbfc",
    ]


def test_an_event_has_a_limit_in_one_line_and_in_many() -> None:
    for piece in (b"data:" + b"x" * 40, b"data:" + b"x" * 40 + b"\n"):
        events = Events(max_event_bytes=100)
        with pytest.raises(EventTooLarge):
            list(chain.from_iterable(map(events.feed, [piece] * 3)))


# --- multipart


def received(wire: bytes, sizes: list[int], boundary: bytes = b"b") -> list[tuple[str, bytes]]:
    """Content type and body of each part."""
    parts: list[tuple[str, bytes]] = []
    kind, body = "", b""
    pieces = filter(None, cut(wire, sizes))
    for event in emitted(parse_parts(boundary), lambda _: next(pieces, b"")):
        match event:
            case PartStart(content_type):
                kind, body = content_type, b""
            case PartData(data):
                body += data
            case PartEnd():
                parts.append((kind, body))
    return parts


bodies = st.binary(max_size=40) | st.sampled_from([b"\r\n--", b"\r\n--a", b"\r\n", b"--b", b"\r"])


@given(st.lists(bodies, max_size=5), cuts)
def test_parts_do_not_depend_on_how_the_bytes_are_split(
    sent: list[bytes], sizes: list[int]
) -> None:
    sent = [body for body in sent if b"\r\n--b" not in b"\r\n" + body + b"\r\n"]
    wire = b"skipped\r\n"
    for body in sent:
        wire += b"--b\r\nX: y\r\ncontent-type: a/b\r\n\r\n" + body + b"\r\n"
    wire += b"--b--\r\nskipped too"
    assert received(wire, sizes) == [("a/b", body) for body in sent]


def test_a_part_may_be_without_headers_and_a_boundary_followed_by_blanks() -> None:
    assert received(b"--b \t\r\n\r\nbody\r\n--b--", []) == [("text/plain", b"body")]


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"no boundary",
        b"--b\r\n\r\nbody that ends",
        b"--b\r\nContent-Type: a/b",
        b"--b\r\n\r\nbody\r\n--b",
        b"--b\r\n\r\nbody\r\n--bc\r\n\r\n\r\n--b--",
        b"--b\r\n" + b"X: y\r\n" * 10_000,
    ],
)
def test_a_truncated_or_malformed_multipart_body_is_an_error(wire: bytes) -> None:
    with pytest.raises(Malformed):
        received(wire, [])


def test_the_boundary_comes_from_the_content_type() -> None:
    assert boundary_of('multipart/mixed; boundary="a b"') == b"a b"
    for content_type in ("multipart/mixed", "text/plain; boundary=b", ""):
        with pytest.raises(Malformed):
            boundary_of(content_type)


# --- input


def test_pieces_fill_the_limit() -> None:
    pieces = lines.pieces(source(b"abc", b"defg", b"h"), 3, text=False)
    assert list(pieces) == [b"abc", b"def", b"gh"]


@given(st.text(max_size=60), cuts, st.integers(4, 9))
def test_pieces_of_text_end_with_whole_characters(text: str, sizes: list[int], most: int) -> None:
    coming = [piece for piece in cut(text.encode(), sizes) if piece]
    pieces = list(lines.pieces(source(*coming), most, text=True))
    assert "".join(piece.decode() for piece in pieces) == text
    assert all(0 < len(piece) <= most for piece in pieces)


def test_lines_are_batched_and_the_last_needs_no_newline() -> None:
    batches = lines.batches(source(b"one\ntw", b"o\n\nthree"), max_bytes=5)
    assert list(batches) == [[b"one\n"], [b"two\n", b"\n"], [b"three"]]


def test_complete_lines_are_not_held_back() -> None:
    batches = lines.batches(source(b"one\ntw", None, b"o\n"))
    assert list(batches) == [[b"one\n"], [b"two\n"]]


@pytest.mark.parametrize("pause_s", [0.001, 0.01, 0.049])
def test_no_line_waits_long_for_others_however_fast_they_come(pause_s: float) -> None:
    """By a virtual clock: a line comes after each pause, 600 times."""
    now, came = 0.0, 0

    def read(timeout_s: float | None) -> bytes | None:
        nonlocal now, came
        if timeout_s is not None and timeout_s < pause_s:
            now += timeout_s
            return None
        now, came = now + pause_s, came + 1
        return b"%f\n" % now if came <= 600 else b""

    taken = 0
    for batch in lines.batches(read, clock=lambda: now):
        taken += len(batch)
        assert now - float(batch[0]) <= lines.LINGER_S + 1e-6
    assert taken == 600


def test_complete_lines_are_taken_before_the_reader_stops() -> None:
    coming = iter([b"one\ntwo\nthr"])

    def read(_: float | None) -> bytes | None:
        if (data := next(coming, None)) is None:
            raise Stopped(signal.SIGINT)
        return data

    batches = lines.batches(read)
    assert next(batches) == [b"one\n", b"two\n"]
    with pytest.raises(Stopped):
        next(batches)


def test_a_line_has_a_limit() -> None:
    endless = source(*[b"x" * 1024 * 1024] * 17)
    with pytest.raises(LineTooLong):
        list(lines.batches(endless))


def test_lines_of_json_become_arrays_and_other_lines_stay_as_they_are() -> None:
    batches = [[b'{"a":1}\n', b"\n", b" [2] \r\n"], [b"\n"], [b"3"]]
    assert list(bodies_of_lines(iter(batches), "application/json")) == [b'[{"a":1},[2]]', b"[3]"]
    assert b"".join(bodies_of_lines(iter(batches), "text/plain")) == b'{"a":1}\n\n [2] \r\n\n3'


@pytest.mark.parametrize("line", [b"1,2", b"1] , [2", b"nope", b'"open'])
def test_a_line_that_is_not_a_json_value_is_named(line: bytes) -> None:
    with pytest.raises(NotJson, match="line 2"):
        list(bodies_of_lines(iter([[b"1\n", line]]), "application/json"))


# --- output


def test_json_messages_are_printed_one_a_line_digit_for_digit() -> None:
    array = b'[{"n": 12345678901234567890.10},\r\n {"a":\n [1]}]'
    shown = plain("application/json", array)
    assert shown == b'{"n": 12345678901234567890.10}\n{"a":  [1]}\n'


@pytest.mark.parametrize(
    ("content_type", "data", "content"),
    [
        ("application/json", b'[1, "a"]', {"messages": [1, "a"]}),
        ("text/plain", 'a"\nü'.encode(), {"text": 'a"\nü'}),
        ("text/plain", b"\xff", {"base64": "/w=="}),
        ("image/png", b"\x89P", {"base64": "iVA="}),
    ],
)
def test_a_piece_is_a_line_of_json(content_type: str, data: bytes, content: object) -> None:
    line = json_line(content_type, data, "7_9")
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"next_offset": "7_9", **content}  # type: ignore[dict-item]


@given(st.binary(max_size=50), cuts)
def test_a_message_in_pieces_is_one_line_of_json(data: bytes, sizes: list[int]) -> None:
    for kind in ("text/plain", "a/b"):
        text = JsonText(kind)
        line = text.head() + b"".join(map(text.more, cut(data, sizes))) + text.foot()
        assert line.count(b"\n") == 1
        told = json.loads(line)
        if kind == "a/b":
            assert b64decode(told["base64"]) == data
        else:
            assert told["text"] == data.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("count", "kept"),
    [(0, b""), (1, b"three"), (2, b"two\nthree"), (3, b"\ntwo\nthree"), (9, b"one\n\ntwo\nthree")],
)
def test_the_last_lines_do_not_depend_on_the_pieces(count: int, kept: bytes) -> None:
    for end in (b"", b"\n"):
        last = LastLines(count, 100)
        for piece in (b"one\n", b"\ntw", b"o\nthr", b"ee" + end):
            last.add(piece)
        assert last.lines() == (kept + end if count else b"")
