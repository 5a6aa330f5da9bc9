"""Keys of subscriptions, as nodes make, use and replace them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from streamd.config.settings import Config, ConfigError
from streamd.config.subscriptions import SubscriptionsConfig
from streamd.group.proposals import Unavailable
from streamd.node.delivery import webhooks
from streamd.node.delivery.keyring import Keyring, KeysSealed
from streamd.node.delivery.webhooks import Webhooks
from streamd.node.node import Node
from streamd.streams.subscriptions.model import WakeReport
from streamd.streams.subscriptions.signing_keys import (
    MAX_SUBSCRIPTION_KEYS,
    TooManySubscriptionKeys,
)
from streamd.streams.subscriptions.tokens import GRACE_MS, TokenExpired, TokenInvalid
from tests.node.delivery.nodes import create_stream, node_with_webhooks, record, subscribe
from tests.node.delivery.receivers import answers, receiver
from tests.support.nodes import Clock, append_to, wait_until

DONE = answers(200, b'{"done":true}')


def sealing(directory: Path, secret: str = "s" * 64) -> SubscriptionsConfig:
    file = directory / "sealing-secret"
    file.write_text(secret)
    return SubscriptionsConfig(allow_local_http=True, secret_file=str(file))


def kids(node: Node) -> list[str]:
    return [key["kid"] for key in json.loads(node.keyring.jwks())["keys"]]


def wake(until_ms: int) -> WakeReport:
    return WakeReport(7, 3, "w_1", "worker", until_ms)


async def test_the_first_key_is_made_once(tmp_path: Path) -> None:
    async with node_with_webhooks(tmp_path) as node:
        assert (node.keyring.signing_kid, kids(node)) == ("", [])
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(node.keyring.ensure)
        assert kids(node) == [node.keyring.signing_kid]
        assert [key.number for key in node.keyring.known.values()] == [1]


async def test_keys_and_tokens_outlive_the_process(tmp_path: Path) -> None:
    async with node_with_webhooks(tmp_path) as node:
        await node.keyring.ensure()
        token = node.keyring.mint("callback", wake(node.group.now_ms() + 60_000))
        published = node.keyring.jwks()
    async with node_with_webhooks(tmp_path) as node:
        assert node.keyring.jwks() == published
        assert node.keyring.verify(token.encode(), "callback", number=7).holder == "worker"


async def test_a_token_ends_with_its_lease_by_log_time(tmp_path: Path) -> None:
    clock = Clock()
    async with node_with_webhooks(tmp_path, clock=clock) as node:
        await node.keyring.ensure()
        token = node.keyring.mint("write", wake(clock.now_ms + 1_000)).encode()
        clock.now_ms += 1_000 + GRACE_MS
        assert node.keyring.verify(token, "write").wake_id == "w_1"
        clock.now_ms += 1
        with pytest.raises(TokenExpired):
            node.keyring.verify(token, "write")


async def test_after_a_rotation_the_last_key_stays_published_and_its_tokens_valid(
    tmp_path: Path,
) -> None:
    async with receiver(DONE) as there, node_with_webhooks(tmp_path) as node:
        await create_stream(node, "a")
        await subscribe(node, "s", there.url)
        first = node.keyring.signing_kid
        token = node.keyring.mint("callback", wake(node.group.now_ms() + 60_000)).encode()
        await node.keyring.rotate()
        assert node.keyring.signing_kid != first
        assert kids(node) == [node.keyring.signing_kid, first]
        assert node.keyring.verify(token, "callback").key_number == 1
        await append_to(node, "a", b"one")
        await there.count(1)
        signed = there.requests[0].headers["webhook-signature"]
        assert f"kid={node.keyring.signing_kid}," in signed


async def test_too_many_rotations_in_a_day_are_refused(tmp_path: Path) -> None:
    clock = Clock()
    async with node_with_webhooks(tmp_path, clock=clock) as node:
        for _ in range(MAX_SUBSCRIPTION_KEYS):
            await node.keyring.rotate()
        with pytest.raises(TooManySubscriptionKeys):
            await node.keyring.rotate()
        clock.now_ms += 24 * 3_600_000 + 1
        key = await node.keyring.rotate()
        assert [one.number for one in node.keyring.known.values()] == [key.number - 1, key.number]


async def test_a_stolen_key_leaves_at_once_with_the_tokens_that_it_made(tmp_path: Path) -> None:
    async with receiver(DONE) as there, node_with_webhooks(tmp_path) as node:
        await create_stream(node, "a")
        await subscribe(node, "s", there.url)
        await node.keyring.rotate()
        stolen = kids(node)
        token = node.keyring.mint("callback", wake(node.group.now_ms() + 60_000)).encode()
        assert node.keyring.verify(token, "callback").key_number == 2
        await node.keyring.rotate(revokes=True)
        assert kids(node) == [node.keyring.signing_kid]
        assert not {node.keyring.signing_kid} & {*stolen}
        with pytest.raises(TokenInvalid):
            node.keyring.verify(token, "callback")
        await append_to(node, "a", b"one")
        await there.count(1)
        signed = there.requests[0].headers["webhook-signature"]
        assert f"kid={node.keyring.signing_kid}," in signed


async def test_of_two_rotations_at_once_one_is_refused_with_what_it_revokes(tmp_path: Path) -> None:
    """Both add the key of one number, as at two nodes at once."""
    async with node_with_webhooks(tmp_path) as node:
        await node.keyring.ensure()
        stolen = node.keyring.signing_kid
        other = Keyring(node.group, Webhooks(), Random(1))
        outcomes: dict[bool, str] = {}

        async def rotate(keyring: Keyring, *, revokes: bool) -> None:
            try:
                await keyring.rotate(revokes=revokes)
                outcomes[revokes] = "done"
            except Unavailable:
                outcomes[revokes] = "refused"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(rotate, other, revokes=False))
            nursery.start_soon(partial(rotate, node.keyring, revokes=True))
        assert sorted(outcomes.values()) == ["done", "refused"]
        assert (stolen not in kids(node)) == (outcomes[True] == "done")


async def test_sealed_keys_are_used_with_their_secret(tmp_path: Path) -> None:
    config = sealing(tmp_path)
    async with receiver(DONE) as there, node_with_webhooks(tmp_path / "n", config) as node:
        await create_stream(node, "a")
        await subscribe(node, "s", there.url)
        [key] = node.keyring.known.values()
        assert key.is_sealed
        assert node.keyring.current().private_key not in key.secret
        await append_to(node, "a", b"one")
        await there.count(1)


@pytest.mark.parametrize("lacks", ["no file", "another file"])
async def test_a_node_that_cannot_open_the_keys_says_so_and_delivers_nothing(
    tmp_path: Path, lacks: str
) -> None:
    clock = Clock()
    config = sealing(tmp_path)
    async with receiver(DONE) as there:
        async with node_with_webhooks(tmp_path / "n", config, clock) as node:
            await create_stream(node, "a")
            await subscribe(node, "s", there.url)
            token = node.keyring.mint("callback", wake(clock.now_ms + 60_000)).encode()
        other = sealing(tmp_path / "n", "t" * 64)
        if lacks == "no file":
            other = SubscriptionsConfig(allow_local_http=True)
        async with node_with_webhooks(tmp_path / "n", other, clock) as node:
            await append_to(node, "a", b"one")
            await wait_until(lambda: len(node.deliverer.queue) == 1)
            assert (there.connections, record(node, "s").attempts) == (0, 0)
            named = "subscriptions.secret_file" if lacks == "no file" else other.secret_file
            with pytest.raises(KeysSealed, match=str(named)):
                node.keyring.verify(token, "callback")
            with pytest.raises(KeysSealed):
                node.keyring.mint("callback", wake(0))
            assert len(kids(node)) == 1
        async with node_with_webhooks(tmp_path / "n", config, clock):
            await there.count(1)


async def test_a_key_can_be_sealed_later_by_a_rotation(tmp_path: Path) -> None:
    async with node_with_webhooks(tmp_path / "n") as node:
        await node.keyring.ensure()
        token = node.keyring.mint("callback", wake(node.group.now_ms() + 60_000)).encode()
    async with node_with_webhooks(tmp_path / "n", sealing(tmp_path)) as node:
        await node.keyring.rotate()
        assert [key.is_sealed for key in node.keyring.known.values()] == [False, True]
        assert node.keyring.verify(token, "callback").number == 7


async def test_subscriptions_without_a_key_get_one(tmp_path: Path) -> None:
    """As they are after a restore: another cluster makes its own keys."""
    async with receiver(DONE) as there, node_with_webhooks(tmp_path) as node:
        await create_stream(node, "a")
        await subscribe(node, "s", there.url)
        node.group.state.subscriptions.forget_keys()
        await append_to(node, "a", b"one")
        await there.count(1)
        assert node.keyring.signing_kid in there.requests[0].headers["webhook-signature"]


async def test_a_token_of_another_cluster_is_invalid(tmp_path: Path) -> None:
    async with node_with_webhooks(tmp_path / "a") as node:
        await node.keyring.ensure()
        token = node.keyring.mint("callback", wake(node.group.now_ms() + 60_000)).encode()
    async with node_with_webhooks(tmp_path / "b") as node:
        for _ in range(2):
            with pytest.raises(TokenInvalid):
                node.keyring.verify(token, "callback")
            await node.keyring.ensure()


@pytest.mark.parametrize("secret", [None, "short"])
def test_a_secret_that_cannot_be_used_ends_the_start(tmp_path: Path, secret: str | None) -> None:
    file = tmp_path / "secret"
    if secret is not None:
        file.write_text(secret)
    config = Config(subscriptions=SubscriptionsConfig(secret_file=str(file)))
    with pytest.raises(ConfigError, match=f"subscriptions.secret_file.*{file}"):
        webhooks.configured(config)
