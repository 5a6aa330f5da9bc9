"""Characters that appends cut in two: live readers see them whole, like all other readers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.client.core.sse import Events
from streamd.http.protocol.sse import data_event, whole_characters
from tests.http.serving import RawClient, Serving, serving
from tests.http.test_live import STREAM, TEXT, ask, parked

CLOSE = {**TEXT, "Stream-Closed": "true"}
BINARY = {"Content-Type": "image/png"}
EMOJI = "🎈".encode()


def shown(event: bytes) -> str:
    """The text of the data events in a piece of an SSE body."""
    return b"".join(e.data for e in Events().feed(event) if e.kind == "data").decode()


async def listen(server: Serving, reader: RawClient, offset: str = "-1") -> str:
    """Begin to read live. Returns the text shown at once."""
    await ask(reader, f"{STREAM}?offset={offset}&live=sse")
    assert (await reader.read_head()).status == 200
    first = shown(await reader.read_through(b"upToDate"))
    await parked(server)
    return first


async def append(client: httpx.AsyncClient, content: bytes, headers: dict[str, str] = TEXT) -> str:
    appended = await client.post(STREAM, headers=headers, content=content)
    assert appended.status_code == 204
    return appended.headers["stream-next-offset"]


PIECES = st.lists(
    st.one_of(st.binary(min_size=1, max_size=3), st.sampled_from([EMOJI, b"a", "é".encode()])),
    max_size=12,
).map(lambda pieces: b"".join(pieces).replace(b"\r", b""))


@given(PIECES, st.lists(st.integers(1, 4)), st.data())
def test_events_cut_anywhere_show_the_same_text_as_one_event(
    text: bytes, cuts: list[int], data: st.DataObject
) -> None:
    records = pieces(text, cuts)
    whole = shown(data_event("text/plain", [b"x", text])) if text else "x"
    held, told = b"", "x"
    while records:
        size = data.draw(st.integers(1, len(records)))
        parts, records = records[:size], records[size:]
        kept, held = whole_characters("text/plain", held, parts, last=not records)
        assert len(held) <= 3
        if kept:
            told += shown(data_event("text/plain", [b"x", *kept]))[1:]
    assert told == whole


def pieces(text: bytes, sizes: Sequence[int]) -> list[bytes]:
    found = []
    for size in sizes:
        found.append(text[:size])
        text = text[size:]
    return [piece for piece in (*found, text) if piece]


@pytest.mark.parametrize("place", [1, 2, 3])
async def test_a_live_reader_sees_a_character_when_it_ends(place: int, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client, server.connect() as reader:
        await client.put(STREAM, headers=TEXT, content=b"begun ")
        assert await listen(server, reader) == "begun "
        await append(client, b"a" + EMOJI[:place])
        assert shown(await reader.read_through(b"upToDate")) == "a"
        await append(client, EMOJI[place:] + b"b")
        assert shown(await reader.read_through(b"upToDate")) == "🎈b"


async def test_a_character_of_four_appends(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client, server.connect() as reader:
        await client.put(STREAM, headers=TEXT)
        assert await listen(server, reader) == ""
        told = []
        for byte in EMOJI:
            offset = await append(client, bytes([byte]))
            event = await reader.read_through(b"upToDate")
            assert offset.encode() in event
            told.append(shown(event))
        assert told == ["", "", "", "🎈"]


@pytest.mark.parametrize("place", [1, 2, 3])
async def test_a_reader_that_returns_between_the_halves_misses_nothing(
    place: int, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put(STREAM, headers=TEXT, content=b"begun ")
        async with server.connect() as reader:
            assert await listen(server, reader) == "begun "
            offset = await append(client, EMOJI[:place])
            assert shown(await reader.read_through(b"upToDate")) == ""
        async with server.connect() as reader:
            assert await listen(server, reader, offset) == ""
            await append(client, EMOJI[place:])
            assert shown(await reader.read_through(b"upToDate")) == "🎈"


async def test_a_reader_misses_nothing_when_the_server_restarts_between_the_halves(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put(STREAM, headers=TEXT, content=b"begun ")
        offset = await append(client, EMOJI[:2])
    async with serving(tmp_path) as server, server.client() as client, server.connect() as reader:
        assert await listen(server, reader, offset) == ""
        await append(client, EMOJI[2:])
        assert shown(await reader.read_through(b"upToDate")) == "🎈"


async def test_a_fork_that_begins_inside_a_character_continues_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client, server.connect() as reader:
        source = "/v1/stream/source"
        made = await client.put(source, headers=TEXT, content=b"begun ")
        offset = made.headers["stream-next-offset"]
        await client.post(source, headers=TEXT, content=EMOJI + b"other")
        cut = {"Stream-Fork-Offset": offset, "Stream-Fork-Sub-Offset": "3"}
        await client.put(STREAM, headers={"Stream-Forked-From": source, **cut})
        assert await listen(server, reader, "now") == ""
        await append(client, EMOJI[3:] + b"mine")
        assert shown(await reader.read_through(b"upToDate")) == "🎈mine"


async def test_a_reader_that_catches_up_over_the_cut_sees_it_whole(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client, server.connect() as reader:
        await client.put(STREAM, headers=TEXT, content=b"a" * 65_535 + EMOJI[:1])
        await append(client, EMOJI[1:3])
        await append(client, EMOJI[3:] + b"z")
        await append(client, b"", CLOSE)
        await ask(reader, f"{STREAM}?offset=-1&live=sse")
        assert shown((await reader.read_response()).body) == "a" * 65_535 + "🎈z"


@pytest.mark.parametrize("end", [b"", b"!"])
async def test_a_character_that_never_ends_is_shown_broken_with_the_next_text(
    end: bytes, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.client() as client, server.connect() as reader:
        await client.put(STREAM, headers=TEXT, content=b"begun ")
        assert await listen(server, reader) == "begun "
        await append(client, EMOJI[:2])
        assert shown(await reader.read_through(b"upToDate")) == ""
        await append(client, end, CLOSE)
        assert shown(await reader.read_through(b"streamClosed")) == "\ufffd" + end.decode()


async def test_the_close_is_announced_without_earlier_text(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        made = await client.put(STREAM, headers=CLOSE, content=EMOJI[:2])
        for offset in ("now", made.headers["stream-next-offset"]):
            told = (await client.get(f"{STREAM}?offset={offset}&live=sse")).content
            assert [event.kind for event in Events().feed(told)] == ["control"]


async def test_other_types_are_never_held_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client, server.connect() as reader:
        await client.put(STREAM, headers=BINARY)
        assert await listen(server, reader) == ""
        await append(client, EMOJI[:2], BINARY)
        assert shown(await reader.read_through(b"upToDate")) == "8J8="
