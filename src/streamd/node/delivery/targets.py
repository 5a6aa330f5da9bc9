"""Where webhooks may lead, as the configuration says."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import ip_address

import trio

from streamd.config.subscriptions import SubscriptionsConfig
from streamd.streams.subscriptions.webhook_urls import (
    Address,
    WebhookUrl,
    WebhookUrlRejected,
    check_address,
    parse_network,
    parse_webhook_url,
)

# So many addresses of a name are tried, one after the other.
MAX_ADDRESSES = 4


class NameNotResolved(Exception):
    """The name in a URL has no address now; the message says what the system says."""


class WebhookTargets:
    """Judges URLs when a subscription is made, and their addresses before each delivery."""

    def __init__(self, config: SubscriptionsConfig) -> None:
        self._allow_local_http = config.allow_local_http
        self._networks = tuple(map(parse_network, config.allowed_networks))
        # Resolving takes a thread for as long as some server of names likes. They are not those by
        # which the node reaches its disk.
        self._resolving = trio.CapacityLimiter(config.max_deliveries)

    def parse(self, url: str) -> WebhookUrl:
        """The parts of a URL, whose name is not resolved. Raises `WebhookUrlRejected`."""
        return parse_webhook_url(
            url, allow_local_http=self._allow_local_http, allowed_networks=self._networks
        )

    async def addresses(self, url: WebhookUrl) -> Sequence[Address]:
        """The addresses to which a delivery may connect, in the system's order.

        Raises `WebhookUrlRejected` if the name has only others, `NameNotResolved`.
        """
        if url.address is not None:
            return [url.address]
        try:
            found = await trio.to_thread.run_sync(
                socket.getaddrinfo, url.host, url.port, 0, socket.SOCK_STREAM,
                abandon_on_cancel=True, limiter=self._resolving,
            )  # fmt: skip
        except (OSError, UnicodeError) as error:
            raise NameNotResolved(str(error)) from None
        addresses = dict.fromkeys(ip_address(str(one[4][0])) for one in found)
        return self.allowed(url, list(addresses))[:MAX_ADDRESSES]

    def allowed(self, url: WebhookUrl, addresses: Sequence[Address]) -> Sequence[Address]:
        """Those addresses of a name to which a webhook may connect. Raises `WebhookUrlRejected` if
        there are none."""
        allowed, rejected = [], WebhookUrlRejected("its name has no address")
        for address in addresses:
            try:
                check_address(address, url, self._networks)
                allowed.append(address)
            except WebhookUrlRejected as error:
                rejected = error
        if not allowed:
            raise rejected
        return allowed
