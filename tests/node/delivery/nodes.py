"""Nodes with subscriptions, and what their clients do."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from streamd.config.subscriptions import SubscriptionsConfig
from streamd.node.node import Node
from streamd.streams.commands import Outcome, Result
from streamd.streams.subscriptions.commands import AcknowledgeWake, PutSubscription
from streamd.streams.subscriptions.model import Subscription, SubscriptionConfig, WakeStamp
from tests.support.nodes import Clock, create, running_node

LOCAL = SubscriptionsConfig(allow_local_http=True, delivery_timeout_ms=1_000)


def node_with_webhooks(
    directory: Path, config: SubscriptionsConfig = LOCAL, clock: Clock | None = None
) -> AbstractAsyncContextManager[Node]:
    """A node that may post to this machine."""
    return running_node(directory, subscriptions=config, clock=clock)


async def subscribe(
    node: Node, name: str, url: str, *, pattern: str = "bucket/*", lease_ttl_ms: int = 30_000
) -> Subscription:
    """A webhook subscription to the streams of a pattern, and the first key."""
    await node.keyring.ensure()
    config = SubscriptionConfig("webhook", pattern, url, lease_ttl_ms=lease_ttl_ms)
    outcome = await node.group.writes.propose(PutSubscription(name, config))
    assert outcome.result is Result.CREATED
    return record(node, name)


def record(node: Node, name: str) -> Subscription:
    found = node.group.state.subscriptions.by_id(name)
    assert found is not None
    return found


async def create_stream(node: Node, name: str) -> None:
    outcome = await node.group.writes.propose(create(name))
    assert outcome.result is Result.CREATED


async def call_back(node: Node, body: dict[str, Any], *, done: bool) -> Outcome:
    """What the callback of a notification does, without acknowledging anything."""
    token = node.keyring.verify(body["callback_token"].encode(), "callback")
    stamp = WakeStamp(token.number, body["generation"], body["wake_id"])
    command = AcknowledgeWake(body["subscription_id"], stamp, [], done)
    return await node.group.writes.propose(command)
