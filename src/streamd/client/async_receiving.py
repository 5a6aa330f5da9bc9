"""A receiver of webhooks for asyncio and Trio, from which `receiving` is generated."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from streamd.client.async_waking import AsyncWake
from streamd.client.core.receiving import ReceiverFlows
from streamd.client.core.retrying import Session
from streamd.client.webhooks import HeaderItems, Notification

if TYPE_CHECKING:
    from streamd.client.async_driving import AsyncDriver


class AsyncWebhooks:
    """Verifies webhooks of subscriptions, with the server's public keys, which it keeps.

    Each request needs the headers and the body, exactly as they came.
    """

    def __init__(
        self, driver: AsyncDriver, session: Session, subscription_ids: Collection[str]
    ) -> None:
        self._driver = driver
        self._flows = ReceiverFlows(session, subscription_ids)
        self._verifying = driver.lock()

    async def verify(self, headers: HeaderItems, body: bytes) -> Notification:
        """What a webhook says, if the server has signed it in the last five minutes.

        Answer with {"done": True} if all is handled that it came for, or with any other success
        and go on with `wake`. Raises `BadWebhook`, to be answered with 401, and if the server's
        keys cannot be had `StreamdError`, to be answered with 503: it calls again.
        """
        async with self._verifying:
            return await self._driver.run(self._flows.verify(headers, body))

    def wake(self, notification: Notification) -> AsyncWake:
        """The wake of a notification that was not answered as done, for a `with` block.

        The block must begin before the lease ends. It acknowledges by the server's callback.
        """
        return AsyncWake(self._driver, self._flows.hold(notification))
