"""The `[subscriptions]` section of the configuration."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated

import msgspec

from streamd.process.redaction import shown

_BASE = re.compile(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?"
)


class SubscriptionsConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[subscriptions]` section: how webhooks are called, and how their receivers answer.

    Receivers reach the server at `callback_url`, by default at ``server.advertise`` or
    ``server.listen``: callbacks and the public keys are below it, at the paths of the API. The keys
    by which webhooks are signed are sealed with the bytes of `secret_file`, which all nodes have.

    URLs of webhooks are https, and lead to public addresses. With `allow_local_http` those of this
    machine may be http; `allowed_networks`, such as ``10.1.0.0/16``, may be receivers', too. Their
    certificates are checked against the authorities in `ca` (PEM), or the system's. The leader
    calls `max_deliveries` at once, and waits `delivery_timeout_ms` for each answer.
    """

    callback_url: str | None = None
    secret_file: str | None = None
    allow_local_http: bool = False
    allowed_networks: list[str] = []
    ca: str | None = None
    max_deliveries: Annotated[int, msgspec.Meta(ge=8, le=4096)] = 256
    delivery_timeout_ms: Annotated[int, msgspec.Meta(ge=1_000, le=600_000)] = 30_000


def subscriptions_fault(config: SubscriptionsConfig) -> str | None:
    """What is wrong with the section, beginning with the key; None if nothing is."""
    if config.callback_url is not None and _BASE.fullmatch(config.callback_url) is None:
        return (
            f"callback_url: {shown(config.callback_url)!r} is not a URL without a query, such as "
            "https://streams.example.net"
        )
    for network in config.allowed_networks:
        try:
            ip_network(network)
        except ValueError:
            return f"allowed_networks: {shown(network)!r} is not a network such as 10.1.0.0/16"
    for key in ("secret_file", "ca"):
        if getattr(config, key) == "":
            return f"{key} is empty: name a file, or leave it out"
    return None
