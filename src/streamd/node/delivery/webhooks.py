"""What a node needs to deliver webhooks, from its configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamd.config.secret_files import read_secret
from streamd.config.settings import Config, ServerConfig
from streamd.config.subscriptions import SubscriptionsConfig
from streamd.node.delivery.sender import Poster, WebhookSender
from streamd.node.delivery.targets import WebhookTargets
from streamd.streams.subscriptions.signing_keys import MIN_SEALING_SECRET_BYTES


def _sender() -> Poster:
    config = SubscriptionsConfig()
    return WebhookSender(config, WebhookTargets(config))


@dataclass(frozen=True, kw_only=True)
class Webhooks:
    """`base_url` is where receivers reach the server; `sealing_secret` seals the keys, if it is
    there."""

    config: SubscriptionsConfig = field(default_factory=SubscriptionsConfig)
    base_url: str = ""
    sealing_secret: bytes | None = None
    poster: Poster = field(default_factory=_sender)


def configured(config: Config, poster: Poster | None = None) -> Webhooks:
    """What the configuration says; without a `poster` webhooks go to the network. Raises
    `ConfigError` for files that cannot be read."""
    own = config.subscriptions
    return Webhooks(
        config=own,
        base_url=own.callback_url or _own_url(config.server),
        sealing_secret=_sealing_secret(own),
        poster=poster or WebhookSender(own, WebhookTargets(own)),
    )


def _own_url(server: ServerConfig) -> str:
    scheme = "http" if server.tls_cert is None else "https"
    return f"{scheme}://{server.advertise or server.listen}"


def _sealing_secret(config: SubscriptionsConfig) -> bytes | None:
    if config.secret_file is None:
        return None
    return read_secret("subscriptions.secret_file", config.secret_file, MIN_SEALING_SECRET_BYTES)
