"""A stream and its snapshots for asyncio and Trio, from which `stream` is generated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from streamd.client.async_consuming import AsyncConsumer
from streamd.client.async_producing import AsyncProducer
from streamd.client.core import snapshots
from streamd.client.core.consuming import ConsumerFlows
from streamd.client.core.producing import ProducerSettings, producer
from streamd.client.core.reading import Live
from streamd.client.core.streams import Data, Once, StreamFlows, as_bytes
from streamd.client.epochs import Epochs
from streamd.client.positions import Positions, StreamPositions
from streamd.client.values import START, Appended, Bootstrap, Chunk, Snapshot, StreamInfo
from streamd.streams.content import DEFAULT_CONTENT_TYPE

if TYPE_CHECKING:
    from streamd.client.async_driving import AsyncDriver, AsyncIteration

T = TypeVar("T")


class AsyncStream:
    """A stream on a server. All methods raise `StreamdError`, and `Unreachable` of it."""

    # For the blocking client:
    # >>> from streamd.client import Client
    # >>> client = Client("http://127.0.0.1:4437")
    # >>> stream = client.stream("help/orders")
    # >>> stream.create("application/json").content_type
    # 'application/json'
    # >>> first = stream.append_json({"order": 17}, once="order-17")
    # >>> stream.append_json({"order": 17}, once="order-17").is_new
    # False
    # >>> list(stream.read_json())
    # [{'order': 17}]
    # >>> list(stream.read_json(first.next_offset))
    # []
    # >>> client.close()

    def __init__(self, driver: AsyncDriver, flows: StreamFlows) -> None:
        self._driver = driver
        self._flows = flows

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        """The name that was given."""
        return self._flows.name.written

    async def create(
        self,
        content_type: str = DEFAULT_CONTENT_TYPE,
        *,
        ttl_s: int | None = None,
        expires_at: str | None = None,
        closed: bool = False,
        data: Data = b"",
        write_fence: bool = False,
    ) -> StreamInfo:
        """Create the stream, or confirm that it exists with these settings.

        It expires `ttl_s` after the last read or write, or at `expires_at` (RFC 3339). `data` is
        its first content. With `write_fence` a worker of a subscription writes to it only while
        its wake lasts (`Wake.producer`). Raises `AlreadyExists` if it has other settings.
        """
        return await self._driver.run(
            self._flows.create(content_type, ttl_s, expires_at, closed, data, write_fence)
        )

    async def head(self) -> StreamInfo:
        """What the stream is and where it ends. Raises `StreamNotFound`."""
        return await self._driver.run(self._flows.head())

    async def append(
        self,
        data: Data,
        *,
        content_type: str | None = None,
        if_match: str | None = None,
        seq: str | None = None,
        close: bool = False,
        once: Once | None = None,
    ) -> Appended:
        """Append bytes or text, and close the stream with it if `close`.

        It is sent at most once: if the answer is lost, `OutcomeUnknown` is raised. With a key in
        `once` the stream stores it exactly once, however often it is called with this key, by any
        process: the key is that of an order or a message. What comes first is stored; the server
        does not compare. It remembers keys, each some 100 bytes, while the stream exists. Keys are
        the ids of producers, so a stream's `Producer` has another. For many appends use one, or
        a pair `(id, number)`: appends under one id, counted from 0, each after the answer to the
        one before.

        Raises `StreamClosed`, `ContentTypeMismatch`, `PreconditionFailed` if the stream's ETag is
        not `if_match`, `SequenceConflict` if `seq` is not greater than the last one, byte by byte.
        """
        return await self._driver.run(
            self._flows.append(data, content_type, if_match, seq, close, once)
        )

    async def append_json(
        self,
        *values: Any,
        if_match: str | None = None,
        seq: str | None = None,
        close: bool = False,
        once: Once | None = None,
    ) -> Appended:
        """Append each value as a message of a JSON stream, all in one request, as `append` does.

        Raises `TypeError` and `ValueError` for bytes, sets and NaN, which JSON does not have.
        """
        return await self._driver.run(self._flows.append_json(values, if_match, seq, close, once))

    async def append_many(
        self,
        parts: Iterable[Data],
        *,
        if_match: str | None = None,
        seq: str | None = None,
        close: bool = False,
        once: Once | None = None,
    ) -> Appended:
        """Append each part as a record or JSON message of its own: all, or none.

        A stream that is not JSON takes up to 512 at once, and needs a bucket in its name. Raises
        as `append` does, and `ValueError`.
        """
        return await self._driver.run(self._flows.append_many(parts, if_match, seq, close, once))

    async def fork(
        self,
        name: str,
        *,
        at: str | None = None,
        sub_offset: int | None = None,
        content_type: str | None = None,
        ttl_s: int | None = None,
        expires_at: str | None = None,
    ) -> AsyncFork:
        """Create the stream `name` with the content of this one up to the offset `at`, its end by
        default, without copying it. Returns that stream, and the facts about it as `info`.

        `sub_offset` is how many messages or bytes after `at` belong to it, too. Type and lifetime
        are this stream's unless they are given. Raises as `create` does, and `StreamNotFound`.
        """
        lifetime = ttl_s, expires_at
        flows, info = await self._driver.run(
            self._flows.fork(name, at, sub_offset, content_type, *lifetime)
        )
        return AsyncFork(self._driver, flows, info)

    @property
    def snapshot(self) -> AsyncSnapshots:
        """The stream's snapshots, which summarize it and replace its beginning."""
        return AsyncSnapshots(self._driver, self._flows)

    async def bootstrap(self) -> Bootstrap:
        """The latest snapshot and all messages after it, up to 64 MiB. `state` has no limit.

        Raises `BadName` if the stream is not in a bucket of its own.
        """
        return await self._driver.run(snapshots.bootstrap(self._flows))

    def state(self, *, live: Live = "auto") -> AsyncIteration[Snapshot | Chunk]:
        """Iterate over the latest snapshot, and then the stream from there on as it grows.

        First comes a `Snapshot`, with the offset "-1" if there is none, then chunks as from
        `follow`. A reader that is so slow that a later snapshot has replaced what it reads next
        gets another `Snapshot`, as one whose stream was replaced by another of its name: forget
        the state before it.
        """
        return self._driver.iterate(snapshots.state(self._flows, live))

    def producer(
        self,
        producer_id: str | None = None,
        *,
        epochs: Epochs | None = None,
        linger_s: float = 0.005,
        max_batch_bytes: int = 256 * 1024,
        max_in_flight: int = 4,
        max_queued_bytes: int = 16 * 1024 * 1024,
    ) -> AsyncProducer:
        """What appends to the stream exactly once, over any failure. Use it in a `with` block.

        Starts of a producer that continue each other's work use one `producer_id`, and `epochs`
        that remember: without them, the clock's. Appends wait `linger_s` for others to share their
        request, which has up to about `max_batch_bytes`; `max_in_flight` requests are under way at
        once, in order. Up to `max_queued_bytes` wait in memory.
        """
        gathering = ProducerSettings(linger_s, max_batch_bytes, max_in_flight, max_queued_bytes)
        flows = producer(self._flows, producer_id, epochs, gathering)
        return AsyncProducer(self._driver, flows, max_in_flight)

    async def signed_url(
        self,
        *methods: str,
        expires_in_s: int = 3600,
        base_url: str | None = None,
        prefix: bool = False,
    ) -> str:
        """A URL that permits these methods to anyone who has it: GET, unless others are named.

        It is for browsers and links, which send no headers: they may add parameters, such as
        `&offset=-1&live=sse`. The client's token signs it, and no server is asked: it permits no
        more than that token, and ends with it, or after `expires_in_s`, 7 days at most. Its host is
        that of `base_url`, or of the node that this client asks. With `prefix` it permits them for
        snapshots and the bootstrap, too, and the stream must be in a bucket. Raises `ValueError`.
        """
        from streamd.client.signing import signed_url

        credentials = await self._driver.credentials()
        return signed_url(self._flows, credentials, methods, expires_in_s, base_url, prefix)

    async def close(self, *, if_match: str | None = None) -> Appended:
        """Close the stream: it takes no further appends, and readers see its end."""
        return await self._driver.run(self._flows.close(if_match))

    async def delete(self, *, if_match: str | None = None) -> None:
        """Delete the stream. Raises `StreamNotFound`."""
        await self._driver.run(self._flows.delete(if_match))

    def read(self, offset: str = START, *, max_bytes: int | None = None) -> AsyncIteration[Chunk]:
        """Iterate over the stream from `offset` to its present end, in chunks of about 1 MiB.

        `max_bytes` is the approximate limit of a chunk. Raises `StreamNotFound`, `OffsetGone`, and
        `StreamReplaced` if another stream takes the name meanwhile.
        """
        return self._driver.iterate(self._flows.read(offset, max_bytes))

    @overload
    def read_json(
        self, offset: str = START, *, type: type[T], offsets: Literal[False] = False
    ) -> AsyncIteration[T]: ...
    @overload
    def read_json(
        self, offset: str = START, *, type: type[T], offsets: Literal[True]
    ) -> AsyncIteration[tuple[str, T]]: ...
    @overload
    def read_json(
        self, offset: str = START, *, type: Any = None, offsets: Literal[False] = False
    ) -> AsyncIteration[Any]: ...
    @overload
    def read_json(
        self, offset: str = START, *, type: Any = None, offsets: Literal[True]
    ) -> AsyncIteration[tuple[str, Any]]: ...
    def read_json(
        self,
        offset: str = START,
        *,
        type: Any = None,  # noqa: A002
        offsets: bool = False,
    ) -> AsyncIteration[Any]:
        """Iterate over the messages of a JSON stream, up to its present end.

        Each is a value of `type`: a Struct of msgspec, a dataclass, a TypedDict, any other type
        that msgspec converts to, or a model of pydantic. One that does not fit raises
        `MessageMismatch`, and the iteration goes on after it. With `offsets`, iterate over pairs:
        the position after a message, and the message. A position is an `offset` for `read_json`
        and `follow_json` only. Raises as `read` does, and `ValueError`.
        """
        return self._driver.iterate(self._flows.read_json(offset, type, offsets))

    def follow(self, offset: str = START, *, live: Live = "auto") -> AsyncIteration[Chunk]:
        """Iterate over the stream from `offset` on as it grows, until it is closed.

        A connection that breaks is replaced for as long as it takes: nothing is shown twice or
        left out. `offset` is the `next_offset` of an earlier chunk, "-1" for the start, or "now"
        for the present end. `live` is "sse" (server-sent events), "long-poll", or "auto": events
        unless the stream is text, whose line ends they change. Raises as `read` does.
        """
        return self._driver.iterate(self._flows.follow(offset, live))

    @overload
    def follow_json(
        self,
        offset: str = START,
        *,
        live: Live = "auto",
        type: type[T],
        offsets: Literal[False] = False,
    ) -> AsyncIteration[T]: ...
    @overload
    def follow_json(
        self, offset: str = START, *, live: Live = "auto", type: type[T], offsets: Literal[True]
    ) -> AsyncIteration[tuple[str, T]]: ...
    @overload
    def follow_json(
        self,
        offset: str = START,
        *,
        live: Live = "auto",
        type: Any = None,
        offsets: Literal[False] = False,
    ) -> AsyncIteration[Any]: ...
    @overload
    def follow_json(
        self, offset: str = START, *, live: Live = "auto", type: Any = None, offsets: Literal[True]
    ) -> AsyncIteration[tuple[str, Any]]: ...
    def follow_json(
        self,
        offset: str = START,
        *,
        live: Live = "auto",
        type: Any = None,  # noqa: A002
        offsets: bool = False,
    ) -> AsyncIteration[Any]:
        """Iterate over the messages of a JSON stream as it grows, as `follow` does.

        With `type` and `offsets`, over what `read_json` iterates over with them.
        """
        return self._driver.iterate(self._flows.follow_json(offset, live, type, offsets))

    @overload
    def consumer(
        self,
        name: str,
        *,
        positions: Positions | StreamPositions,
        type: type[T],
        start: str = START,
        live: Live = "auto",
    ) -> AsyncConsumer[T]: ...
    @overload
    def consumer(
        self,
        name: str,
        *,
        positions: Positions | StreamPositions,
        type: Any = None,
        start: str = START,
        live: Live = "auto",
    ) -> AsyncConsumer[Any]: ...
    def consumer(
        self,
        name: str,
        *,
        positions: Positions | StreamPositions,
        type: Any = None,  # noqa: A002
        start: str = START,
        live: Live = "auto",
    ) -> AsyncConsumer[Any]:
        """What iterates over the messages of a JSON stream, after those that a consumer of this
        `name` has handled, and keeps in `positions` how far it came.

        The first one begins at `start`: a position, or "now" for the present end. `type` and `live`
        are those of `follow_json`, and so are the errors: `StreamReplaced` comes also if the stream
        was replaced while no consumer ran. Raises `ValueError`.
        """
        flows = ConsumerFlows(self._flows, name, positions, type, start, live)
        return AsyncConsumer(self._driver, flows)


class AsyncFork(AsyncStream):
    """A stream that `fork` created, or found: `info` is what it was then."""

    def __init__(self, driver: AsyncDriver, flows: StreamFlows, info: StreamInfo) -> None:
        super().__init__(driver, flows)
        self.info = info


class AsyncSnapshots:
    """The snapshots of a stream that is in a bucket. Raises `BadName` for others."""

    # For the blocking client:
    # >>> from streamd.client import Client
    # >>> client = Client("http://127.0.0.1:4437")
    # >>> stream = client.stream("help/counts")
    # >>> at = stream.create("application/json", data="[1, 2, 3]").next_offset
    # >>> stream.snapshot.publish(at, '{"sum": 6}', content_type="application/json")
    # >>> stream.snapshot.read().json()
    # {'sum': 6}
    # >>> client.close()

    def __init__(self, driver: AsyncDriver, flows: StreamFlows) -> None:
        self._driver = driver
        self._flows = flows

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._flows.name.written}>"

    async def publish(
        self,
        offset: str,
        data: Data | Callable[[], Iterator[bytes]],
        *,
        content_type: str,
        size_bytes: int | None = None,
    ) -> None:
        """Let `data` stand for everything before `offset`, which readers then no longer get.

        `offset` is the `next_offset` of a chunk. A function returns the pieces of a large
        snapshot, again for each try; tell their `size_bytes` if it is known. Raises `OffsetGone` if
        there is a later snapshot, and `AlreadyExists` if there is another one at this offset.
        """
        body = data if callable(data) else as_bytes(data)
        await self._driver.run(
            snapshots.publish(self._flows, offset, body, content_type, size_bytes)
        )

    async def read(self, at: str | None = None) -> Snapshot:
        """The latest snapshot, or the one at an offset. Raises `SnapshotNotFound`."""
        return await self._driver.run(snapshots.read(self._flows, at))
