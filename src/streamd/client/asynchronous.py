"""The client for asyncio and Trio, from which `blocking` is generated."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from streamd.client.async_receiving import AsyncWebhooks
from streamd.client.async_stream import AsyncStream
from streamd.client.async_subscription import AsyncSubscription
from streamd.client.closing import AsyncClosing
from streamd.client.core import operations, subscribing
from streamd.client.core.retrying import TIMEOUT_S, Session, ask, receive
from streamd.client.core.steps import Answer, Body, Request
from streamd.client.core.streams import StreamFlows
from streamd.client.names import bucket_path, parse_name
from streamd.client.subscription_values import SubscriptionInfo
from streamd.client.values import BucketInfo, ListedStream
from streamd.process.redaction import shown

if TYPE_CHECKING:
    from streamd.client.async_driving import AsyncDriver, AsyncIteration, Headers, Token
    from streamd.client.connecting import Cert, Verify

_log = logging.getLogger("streamd.client")


class AsyncClient(AsyncClosing):
    """A server, or the nodes of a cluster: when one is gone the next is asked.

    `urls` is one URL, several with commas between, or a sequence. `token` and `headers` go with
    each request to these nodes and to no others; functions are called for each request, and again
    if the answer is 401. `timeout_s` is how long a server may be silent. A request that fails is
    tried again for `retry_for_s`: by default 60 s once a server has answered, and not at all
    before. `verify` is False, a file of CAs or an SSL context; `cert` a file with the client's
    certificate and key, or two files. Threads and tasks may share a client.

    >>> async def main():
    ...     async with AsyncClient("http://127.0.0.1:4437") as client:
    ...         stream = client.stream("help/news")
    ...         await stream.create("application/json")
    ...         await stream.append_json({"hello": "world"}, close=True)
    ...         async for message in stream.follow_json():
    ...             print(message)
    >>> import asyncio
    >>> asyncio.run(main())
    {'hello': 'world'}
    """

    # For the blocking client:
    # >>> with Client("http://127.0.0.1:4437") as client:
    # ...     stream = client.stream("help/greetings")
    # ...     info = stream.create("application/json")
    # ...     appended = stream.append_json({"hello": "world"}, close=True)
    # ...     for message in stream.follow_json():
    # ...         print(message)
    # {'hello': 'world'}

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: Token | None = None,
        headers: Headers | None = None,
        timeout_s: float = TIMEOUT_S,
        retry_for_s: float | None = None,
        verify: Verify = True,
        cert: Cert | None = None,
    ) -> None:
        # They import httpx, which takes longer than all the rest: it waits for the first client.
        from streamd.client.async_driving import AsyncDriver
        from streamd.client.connecting import settings, url_list

        nodes = url_list(urls)
        renews = callable(token) or callable(headers)
        self._session = Session(
            nodes, retry_for_s=retry_for_s, renews=renews, announce=_log.warning
        )
        self._driver = AsyncDriver(settings(nodes, timeout_s, verify, cert), headers, token)

    def __reduce__(self) -> str:
        raise TypeError("a client cannot be pickled: make one in each process")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({[shown(url) for url in self._session.urls]})"

    async def close(self) -> None:
        """End the connections."""
        await self._driver.client.aclose()

    def stream(self, name: str, *, content_type: str | None = None) -> AsyncStream:
        """The stream with a name, such as `agents/run-1` in the bucket `agents`. Asks nothing.

        A name that begins with a slash is a URL path. An append asks for the content type once
        if it is not given here. Raises `BadName`.
        """
        return AsyncStream(self._driver, StreamFlows(self._session, parse_name(name), content_type))

    def bucket(self, name: str) -> AsyncBucket:
        """The bucket with a name. Asks nothing. Raises `BadName`."""
        return AsyncBucket(self._driver, self._session, name)

    def buckets(self, *, prefix: str = "", after: str | None = None) -> AsyncIteration[BucketInfo]:
        """Iterate over the buckets that the token may list, by name, page by page."""
        return self._driver.iterate(operations.buckets(self._session, prefix, after))

    def subscription(self, subscription_id: str) -> AsyncSubscription:
        """The subscription with an id. Asks nothing. Raises `BadName`."""
        return AsyncSubscription(self._driver, self._session, subscription_id)

    def subscriptions(self, *, after: str | None = None) -> AsyncIteration[SubscriptionInfo]:
        """Iterate over the subscriptions that the token may list, by id, page by page."""
        return self._driver.iterate(subscribing.listing(self._session, after))

    def webhooks(self, *subscription_ids: str) -> AsyncWebhooks:
        """What verifies the webhooks that this server sends: those of the subscriptions that are
        named, or of all."""
        return AsyncWebhooks(self._driver, self._session, subscription_ids)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body = b"",
        repeatable: bool = True,
    ) -> Answer:
        """Ask for any path of the HTTP API, such as an operator's, and return the whole answer.

        Nodes, retries and errors are those of all requests. One that is not `repeatable` is sent
        again only if it cannot have taken effect: raises `OutcomeUnknown` if it may have.
        """
        request = Request(method, path, params, headers, body)
        return await self._driver.run(ask(self._session, request, repeatable=repeatable))

    def download(
        self, path: str, *, params: Mapping[str, str] | None = None
    ) -> AsyncIteration[Answer | bytes]:
        """Iterate over the answer to GET of any path, which may be of any size.

        First comes the `Answer` without its body, and then the body in pieces. Raises
        `Unreachable` if it breaks off after the first piece.
        """
        request = Request("GET", path, params)
        return self._driver.iterate(receive(self._session, request))


class AsyncBucket:
    """A bucket: a namespace of streams."""

    # For the blocking client:
    # >>> client = Client("http://127.0.0.1:4437")
    # >>> stream = client.stream("tools/hammer").create()
    # >>> [listed.stream_id for listed in client.bucket("tools").streams()]
    # ['hammer']
    # >>> client.close()

    def __init__(self, driver: AsyncDriver, session: Session, name: str) -> None:
        self._driver = driver
        self._session = session
        self._name = name
        self._path = bucket_path(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    async def create(self) -> None:
        """Create the bucket, as the creation of a stream in it does. Raises `AlreadyExists`."""
        await self._driver.run(operations.put_bucket(self._session, self._path))

    async def info(self) -> BucketInfo:
        """How many streams it has, and when it was created. Raises `BucketNotFound`."""
        return await self._driver.run(operations.bucket(self._session, self._path))

    async def delete(self) -> None:
        """Delete the bucket. Raises `BucketNotEmpty`, `BucketNotFound`."""
        await self._driver.run(operations.delete(self._session, self._path))

    def streams(
        self, *, prefix: str = "", after: str | None = None
    ) -> AsyncIteration[ListedStream]:
        """Iterate over its streams in the order of their ids, which begin with `prefix`.

        `after` is an id after which to begin. Each page is requested when it is needed. Raises
        `BucketNotFound`.
        """
        return self._driver.iterate(operations.listing(self._session, self._path, prefix, after))
