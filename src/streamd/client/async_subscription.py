"""A subscription and its workers for asyncio and Trio, from which `subscription` is generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamd.client.async_waking import AsyncWake
from streamd.client.core import subscribing
from streamd.client.core.retrying import Session
from streamd.client.core.waking import WorkerFlows
from streamd.client.subscription_values import SubscribedStream, SubscriptionInfo

if TYPE_CHECKING:
    from streamd.client.async_driving import AsyncDriver, AsyncIteration


class AsyncSubscription:
    """A subscription: it wakes a worker when something is appended to its streams.

    All methods raise `StreamdError`, and `SubscriptionNotFound` of it.
    """

    # For the blocking client:
    # >>> from streamd.client import Client
    # >>> client = Client("http://127.0.0.1:4437")
    # >>> stream = client.stream("help/wakes").create("application/json")
    # >>> subscription = client.subscription("helpers")
    # >>> info = subscription.create(wake_stream="help/wakes", pattern="questions/*")
    # >>> question = client.stream("questions/1")
    # >>> stream = question.create("application/json", data='["How are you?"]')
    # >>> with subscription.worker().next() as wake:
    # ...     for stream in wake.pending:
    # ...         print(stream.path, list(question.read_json(stream.acked_offset)))
    # questions/1 ['How are you?']
    # >>> client.close()

    def __init__(self, driver: AsyncDriver, session: Session, subscription_id: str) -> None:
        self._driver = driver
        self._session = session
        self._id = subscription_id
        self._path = subscribing.subscription_path(subscription_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id}>"

    async def create(
        self,
        *,
        webhook: str | None = None,
        wake_stream: str | None = None,
        pattern: str | None = None,
        streams: Sequence[str] = (),
        lease_ttl_s: float | None = None,
        description: str | None = None,
    ) -> SubscriptionInfo:
        """Create the subscription, or confirm that it exists with these settings.

        The server calls the URL `webhook`, or appends to `wake_stream`, a JSON stream that you
        create and workers follow. What counts are streams whose names fit `pattern` (`*` is one
        segment of a name, `**` any number), and those named in `streams`; of what they have now,
        nothing counts. A worker that is silent for `lease_ttl_s` (30, from 1 to 600) is given up.
        Raises `AlreadyExists` if it has other settings, `WebhookUrlRejected`, and `ValueError`.
        """
        body = subscribing.settings(
            webhook, wake_stream, pattern, streams, lease_ttl_s, description
        )
        return await self._driver.run(subscribing.create(self._session, self._path, body))

    async def info(self) -> SubscriptionInfo:
        """What the subscription is, and how far its work is done."""
        return await self._driver.run(subscribing.info(self._session, self._path))

    def streams(self) -> AsyncIteration[SubscribedStream]:
        """Iterate over its streams, page by page."""
        return self._driver.iterate(subscribing.streams(self._session, self._path))

    async def add(self, *names: str) -> None:
        """Name streams explicitly. What they have now does not count."""
        await self._driver.run(subscribing.link(self._session, self._path, names))

    async def remove(self, name: str) -> None:
        """Take the explicit name of a stream back. If it fits the pattern, it stays."""
        await self._driver.run(subscribing.unlink(self._session, self._path, name))

    async def test(self) -> None:
        """Wake it although nothing may be pending, to try a webhook or a worker."""
        await self._driver.run(subscribing.test(self._session, self._path))

    async def delete(self) -> None:
        """Delete the subscription: its wakes end at once, and its streams stay."""
        await self._driver.run(subscribing.delete(self._session, self._path))

    def worker(self, name: str | None = None) -> AsyncPullWorker:
        """A worker of a subscription with a wake stream. Asks nothing.

        `name` is what the server tells others that want the same wake; without one, host and
        process are in it.
        """
        return AsyncPullWorker(self._driver, WorkerFlows(self._session, self._id, name))


class AsyncPullWorker:
    """Waits for the wakes of a subscription. Any number of workers, anywhere, may share them: each
    wake goes to one, and to another if that one dies."""

    def __init__(self, driver: AsyncDriver, flows: WorkerFlows) -> None:
        self._driver = driver
        self._flows = flows

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self._flows.subscription_id}>"

    @property
    def name(self) -> str:
        """The name that the server shows."""
        return self._flows.worker

    def next(self) -> AsyncWake:
        """The next wake, for a `with` block, which waits for it as long as it takes.

        The wait survives whatever happens to connections and servers. Raises
        `SubscriptionNotFound`, `StreamNotFound` and `StreamClosed` (of the wake stream), and
        `ValueError` if the subscription has a webhook.
        """
        return AsyncWake(self._driver, self._flows.next())
