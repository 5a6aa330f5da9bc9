"""All of the interface of PyPI's `durable-streams` 0.1.0, blocking and asynchronous.

Each test is written once, for asyncio: what the blocking half returns is taken as it is.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import Any, NamedTuple

import httpx
import pytest
from durable_streams import (
    AsyncDurableStream,
    DurableStream,
    DurableStreamError,
    RetentionGoneError,
    SeqConflictError,
    SSEBytesIterationError,
    SSEReadAllError,
    StreamConsumedError,
    StreamExistsError,
    StreamNotFoundError,
    astream,
    stream,
)

from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

JSON, TEXT, BYTES = "application/json", "text/plain", "application/octet-stream"
DEADLINE_S = 60.0


class Half(NamedTuple):
    handle: Any
    stream: Callable[..., Any]


HALVES = {
    "blocking": Half(DurableStream, stream),
    "asynchronous": Half(AsyncDurableStream, astream),
}


@pytest.fixture(params=HALVES)
def half(request: pytest.FixtureRequest) -> Half:
    return HALVES[request.param]


numbers = count()
_client = httpx.Client(timeout=DEADLINE_S)


def ask(method: str, url: str, **options: Any) -> httpx.Response:
    """A request of ours, beside the package's."""
    return _client.request(method, url, **options)


@pytest.fixture
def url(server: ServerProcess) -> str:
    """Of a stream that does not exist yet."""
    return f"{server.url}/v1/stream/interface/{next(numbers)}"


async def done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def opened(session: Any) -> AsyncIterator[Any]:
    if hasattr(session, "__aenter__"):
        async with session as response:
            yield response
    else:
        with session as response:
            yield response


async def first(iterator: Any, number: int) -> list[Any]:
    """So many items of an iterator of either half."""
    items: list[Any] = []
    if hasattr(iterator, "__anext__"):
        while len(items) < number:
            items.append(await anext(iterator))
    else:
        items.extend(islice(iterator, number))
    return items


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main()

    asyncio.run(limited())


async def filled(half: Half, url: str, content_type: str, *pieces: Any) -> Any:
    handle = await done(half.handle.create(url, content_type=content_type))
    for piece in pieces:
        await done(handle.append(piece))
    return handle


def test_a_stream_is_created_described_and_deleted(half: Half, url: str) -> None:
    async def main() -> None:
        handle = await done(
            half.handle.create(url, content_type=TEXT, ttl_seconds=60, body="begun")
        )
        assert (handle.url, handle.content_type) == (url, TEXT)
        assert ask("HEAD", url).headers["stream-ttl"] == "60"
        head = await done(handle.head())
        assert (head.exists, head.content_type) == (True, TEXT)
        assert head.etag is not None
        assert head == await done(half.handle.head_static(url))
        connected = await done(half.handle.connect(url))
        assert connected.content_type == TEXT
        same = {"content_type": TEXT, "ttl_seconds": 60}
        await done(half.handle.create(url, **same))
        for other in ({"content_type": JSON}, {**same, "ttl_seconds": 61}):
            with pytest.raises(StreamExistsError):
                await done(half.handle.create(url, **other))
        appended = await done(connected.append(", continued"))
        assert appended.next_offset == (await done(handle.head())).offset > head.offset
        async with opened(handle.stream(live=False)) as response:
            assert await done(response.read_text()) == "begun, continued"
        await done(half.handle.delete_static(url))
        for missing in (handle.head, handle.delete, lambda: handle.append("x")):
            with pytest.raises(StreamNotFoundError):
                await done(missing())
        with pytest.raises(StreamNotFoundError):
            async with opened(half.stream(url)):
                pass

    run(main)


def test_a_stream_ends_at_a_time(half: Half, url: str) -> None:
    async def main() -> None:
        end = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        await done(half.handle.create(url, content_type=JSON, expires_at=end, body="[1,2]"))
        assert ask("HEAD", url).headers["stream-expires-at"] == end
        assert ask("GET", url).json() == [1, 2]
        again = {"content_type": JSON, "ttl_seconds": 1, "expires_at": end}
        with pytest.raises(DurableStreamError) as caught:
            await done(half.handle.create(url + "/both", **again))
        assert caught.value.status == 400

    run(main)


@pytest.mark.parametrize("batching", [True, False])
def test_concurrent_appends_are_stored_once_each(half: Half, url: str, batching: bool) -> None:
    async def main() -> None:
        handle = await done(half.handle.create(url, content_type=JSON, batching=batching))

        async def append(number: int) -> str:
            value = {"n": number, "t": ["ü", None]}
            if half.handle is DurableStream:
                result = await asyncio.to_thread(handle.append, value)
            else:
                result = await handle.append(value)
            return str(result.next_offset)

        offsets = await asyncio.gather(*map(append, range(20)))
        stored = ask("GET", url)
        assert sorted(message["n"] for message in stored.json()) == list(range(20))
        assert max(offsets) == stored.headers["stream-next-offset"]
        assert len(set(offsets)) == 20 or batching

    run(main)


def test_appends_that_cannot_be_stored_are_errors(half: Half, url: str) -> None:
    async def main() -> None:
        handle = await filled(half, url, TEXT)
        await done(handle.append("one", seq="002"))
        for seq in ("002", "001"):
            with pytest.raises(SeqConflictError):
                await done(handle.append("again", seq=seq))
        with pytest.raises(SeqConflictError):  # of the type, which is a 409, too
            await done(handle.append("x", content_type=JSON))
        with pytest.raises(DurableStreamError) as caught:
            await done(handle.append(b""))
        assert (caught.value.status, caught.value.code) == (400, "BAD_REQUEST")
        ask("POST", url, headers={"Stream-Closed": "true"})
        with pytest.raises(SeqConflictError):
            await done(handle.append("too late"))
        assert ask("GET", url).text == "one"

    run(main)


WHOLE = [
    (JSON, "read_json", {}, [1, 2]),
    (JSON, "read_json", {"decode": str}, ["1", "2"]),
    (JSON, "read_json_batches", {}, [[1, 2]]),
    (JSON, "read_bytes", {}, b"[1,2]"),
    (TEXT, "read_text", {}, "12"),
    (BYTES, "read_bytes", {}, b"12"),
]


@pytest.mark.parametrize(("content_type", "method", "options", "whole"), WHOLE)
@pytest.mark.parametrize("live", [False, "long-poll"])
def test_a_stream_is_read_to_its_tail(
    half: Half, url: str, live: Any, content_type: str, method: str, options: Any, whole: object
) -> None:
    async def main() -> None:
        one, two = (1, 2) if content_type == JSON else ("1", "2")
        handle = await filled(half, url, content_type, one, two)
        async with opened(handle.stream(live=live, offset="-1")) as response:
            assert (response.live, response.start_offset) == (live, "-1")
            assert await done(getattr(response, method)(**options)) == whole
            assert response.up_to_date
            with pytest.raises(StreamConsumedError):
                await done(response.read_bytes())
        assert response.closed

    run(main)


ITERATED = [
    (JSON, "iter_json", {}, [1, 2, 3]),
    (JSON, "iter_json", {"decode": str}, ["1", "2", "3"]),
    (JSON, "iter_json_batches", {}, [[1, 2], [3]]),
    (TEXT, "iter_text", {}, ["12", "3"]),
    (TEXT, "__iter__", {}, [b"12", b"3"]),
    (JSON, "iter_events", {"mode": "json"}, [[1, 2], [3]]),
    (JSON, "iter_events", {"mode": "json_batches"}, [[1, 2], [3]]),
    (TEXT, "iter_events", {"mode": "text"}, ["12", "3"]),
    (BYTES, "iter_events", {"mode": "bytes"}, [b"12", b"3"]),
]


@pytest.mark.parametrize(("content_type", "method", "options", "items"), ITERATED)
@pytest.mark.parametrize("live", ["auto", "sse"])
def test_a_stream_is_followed(
    half: Half, url: str, live: Any, content_type: str, method: str, options: Any, items: list[Any]
) -> None:
    async def main() -> None:
        handle = await filled(half, url, content_type)
        one, two, three = (1, 2, 3) if content_type == JSON else ("1", "2", "3")
        ask("POST", url, headers={"Content-Type": content_type}, content=f"{one}")
        ask("POST", url, headers={"Content-Type": content_type}, content=f"{two}")
        start = None if live == "auto" else "-1"
        async with opened(handle.stream(offset=start, live=live)) as response:
            is_bytes = method == "__iter__" or options.get("mode") == "bytes"
            name = "__aiter__" if method == "__iter__" and half.stream is astream else method
            if live == "sse" and is_bytes:
                with pytest.raises(SSEBytesIterationError):
                    await first(getattr(response, name)(**options), 1)
                return
            iterator = getattr(response, name)(**options)
            before = len(items) - 1
            seen = await first(iterator, before)
            await done(handle.append(three))
            seen += await first(iterator, 1)
            if method == "iter_events":
                tail = ask("HEAD", url).headers["stream-next-offset"]
                assert (seen[-1].next_offset, seen[-1].up_to_date) == (tail, True)
                seen = [event.data for event in seen]
            assert seen == items

    run(main)


def test_events_cannot_be_read_to_a_tail(half: Half, url: str) -> None:
    async def main() -> None:
        handle = await filled(half, url, JSON, 1)
        for method in ("read_json", "read_json_batches", "read_text"):
            async with opened(handle.stream(offset="-1", live="sse")) as response:
                with pytest.raises(SSEReadAllError):
                    await done(getattr(response, method)())
        async with opened(handle.stream(offset="-1", live="sse")) as response:
            with pytest.raises(SSEBytesIterationError):
                await done(response.read_bytes())

    run(main)


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_live_read_without_an_offset_is_refused(half: Half, url: str, live: str) -> None:
    """By the protocol, section 5.7; the reference server refuses it, too."""

    async def main() -> None:
        handle = await filled(half, url, JSON, 1)
        with pytest.raises(DurableStreamError) as caught:
            async with opened(handle.stream(live=live)):
                pass
        assert caught.value.status == 400

    run(main)


def test_a_read_says_where_it_is(half: Half, url: str) -> None:
    async def main() -> None:
        handle = await filled(half, url, TEXT, "one")
        middle = (await done(handle.head())).offset
        await done(handle.append("two"))
        async with opened(half.stream(url, offset=middle, live=False)) as response:
            assert (response.url, response.content_type) == (url, TEXT)
            assert (response.start_offset, response.live) == (middle, False)
            assert (response.status, response.status_text, response.ok) == (200, "OK", True)
            assert response.offset == (await done(handle.head())).offset
            assert response.headers["stream-next-offset"] == response.offset
            assert await done(response.read_text()) == "two"
        async with opened(half.stream(url, offset="now", live=False)) as response:
            assert await done(response.read_text()) == ""
            assert response.up_to_date

    run(main)


def test_more_than_one_answer_is_read(half: Half, url: str) -> None:
    async def main() -> None:
        pieces = [letter * 700_000 for letter in "abc"]
        handle = await filled(half, url, TEXT, *pieces)
        async with opened(handle.stream()) as response:
            assert await done(response.read_text()) == "".join(pieces)

    run(main)


def test_what_is_gone_is_an_error_of_its_own(half: Half, url: str) -> None:
    async def main() -> None:
        handle = await filled(half, url, TEXT, "one")
        path = url.split("/v1/stream/")[1]
        forked = {"Content-Type": TEXT, "Stream-Forked-From": f"/v1/stream/{path}"}
        assert ask("PUT", url + "-fork", headers=forked).status_code == 201
        await done(handle.delete())
        with pytest.raises(RetentionGoneError):
            async with opened(half.stream(url)):
                pass

    run(main)


def test_headers_and_parameters_are_asked_for_each_request(half: Half, url: str) -> None:
    async def main() -> None:
        asked: list[str] = []

        def header() -> str:
            asked.append("header")
            return "value"

        def parameter() -> str:
            asked.append("parameter")
            return "local"

        options = {"headers": {"X-Any": header}, "params": {"consistency": parameter}}
        handle = await done(half.handle.create(url, content_type=JSON, **options))
        await done(handle.append(1))
        async with opened(handle.stream(live=False)) as response:
            assert await done(response.read_json()) == [1]
        assert asked == ["header", "parameter"] * 3

    run(main)


def test_an_error_may_be_repaired(half: Half, url: str) -> None:
    async def main() -> None:
        await filled(half, url, JSON, 1)
        errors: list[Any] = []

        def repair(error: Exception) -> dict[str, Any] | None:
            errors.append(error)
            return {"params": {"consistency": "local"}} if len(errors) < 2 else None

        wrong = {"live": False, "params": {"consistency": "none"}, "on_error": repair}
        async with opened(half.stream(url, **wrong)) as response:
            assert await done(response.read_json()) == [1]
        assert [error.status for error in errors] == [400]
        with pytest.raises(DurableStreamError, match="Bad request"):
            async with opened(half.stream(url, **wrong)):
                pass

    run(main)
