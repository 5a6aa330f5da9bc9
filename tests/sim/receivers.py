"""Receivers of webhooks in virtual time, which behave in every way, and what must hold for them.

A receiver knows which records it has worked through, and acknowledges no others; so at any time
what a node takes for acknowledged must have been worked through.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.node.delivery.keyring import Keyring
from streamd.node.delivery.sender import DeliveryFailed
from streamd.node.node import Node
from streamd.streams.commands import Outcome, Result
from streamd.streams.offsets import parse_offset
from streamd.streams.subscriptions.commands import AcknowledgeWake
from streamd.streams.subscriptions.model import Ack, Subscription, WakeStamp
from streamd.streams.subscriptions.paths import key_of
from streamd.streams.subscriptions.tokens import GRACE_MS, TokenExpired, TokenInvalid, WakeToken
from tests.support.machines import Machine

# How long a server waits for an answer.
TIMEOUT_S = 8.0
_DONE = b'{"done":true}'


class InvariantBroken(AssertionError):
    """A wake was lost, or something took effect that had ended."""


@dataclass
class Notified:
    """A notification, as its receiver got it."""

    body: dict[str, Any]
    lease_until_ms: int

    @property
    def name(self) -> str:
        return str(self.body["subscription_id"])

    @property
    def wake_id(self) -> str:
        return str(self.body["wake_id"])

    @property
    def generation(self) -> int:
        return int(self.body["generation"])

    def acks(self) -> list[Ack]:
        """The acknowledgement of all that is pending in it."""
        found = []
        for line in self.body["streams"]:
            tail = parse_offset(line["tail_offset"].encode())
            assert tail is not None
            if line["has_pending"]:
                found.append(Ack(key_of(line["path"]), tail.record, tail.byte))
        return found


@dataclass
class Ledger:
    """What one subscription's receiver knows."""

    # The records that it has worked through, by stream.
    processed: Counter[bytes] = field(default_factory=Counter)
    latest_generation: int = 0
    # Wakes that somebody has ended, or tried to.
    ended: set[str] = field(default_factory=set)
    posts: Counter[str] = field(default_factory=Counter)


class Receivers:
    """The receivers of all subscriptions, which behave by chance until they are `well`."""

    def __init__(self, machines: list[Machine], nursery: trio.Nursery, random: Random) -> None:
        self.machines = machines
        self.ledgers: dict[str, Ledger] = {}
        self.counted: Counter[str] = Counter()
        self.kinds = {"done": 4, "later": 3, "fails": 2, "hangs": 1, "late": 2, "done, unheard": 1}
        self.loss = 0.1
        # Called with the name of each step of a delivery, and the machine that makes it.
        self.on_step: Callable[[str, Machine], None] = lambda *_: None
        self.nursery = nursery
        self.random = random

    def be(self, kind: str) -> None:
        """All behave alike from now on, and nothing is lost."""
        self.kinds, self.loss = {kind: 1}, 0.0

    def ledger(self, name: str) -> Ledger:
        return self.ledgers.setdefault(name, Ledger())

    # -- what arrives -------------------------------------------------------------------------

    def taken(self, machine: Machine, raw: bytes) -> Notified:
        """A notification that a node posts. Raises `InvariantBroken` if it must not."""
        body = json.loads(raw)
        notified = Notified(body, token_of(machine.node.keyring, body) - GRACE_MS)
        ledger = self.ledger(notified.name)
        ledger.posts[notified.wake_id] += 1
        known = machine.node.group.state.subscriptions.by_id(notified.name)
        is_current = known is not None and known.wake is not None
        if known is not None and is_current and known.wake.wake_id == notified.wake_id:  # type: ignore[union-attr]
            posts = ledger.posts[notified.wake_id]
            if posts > known.attempts:
                raise InvariantBroken(
                    f"{notified.name}: post {posts} of a wake with {known.attempts} attempts in "
                    f"the log"
                )
        return notified

    async def receive(self, notified: Notified, answer: Callable[[bytes | None], None]) -> None:
        """Behave in some way. `answer` sends an answer, or None for a failure; not calling it is
        hanging."""
        ledger = self.ledger(notified.name)
        ledger.latest_generation = max(ledger.latest_generation, notified.generation)
        [kind] = self.random.choices([*self.kinds], [*self.kinds.values()])
        self.counted[kind] += 1
        await trio.sleep(self.random.random() * 0.2)
        match kind:
            case "done":
                self._work(notified)
                ledger.ended.add(notified.wake_id)
                answer(_DONE)
            case "done, unheard":
                self._work(notified)
            case "fails":
                answer(None)
            case "later" | "late":
                answer(b"")
                await self._work_and_call_back(notified, is_late=kind == "late")

    def _work(self, notified: Notified) -> None:
        ledger = self.ledger(notified.name)
        for ack in notified.acks():
            ledger.processed[ack.key] = max(ledger.processed[ack.key], ack.record)

    async def _work_and_call_back(self, notified: Notified, *, is_late: bool) -> None:
        """Work for a while with heartbeats, and acknowledge; a late one forgets to live."""
        random, lease_s = self.random, notified.body["lease_ttl_ms"] / 1000
        if is_late:
            await trio.sleep(lease_s * random.uniform(0.8, 4))
        else:
            for _ in range(random.randrange(3)):
                await trio.sleep(lease_s / 3)
                if not await self._call_back(notified, [], done=False):
                    return
        self._work(notified)
        await self._call_back(notified, notified.acks(), done=True)

    # -- callbacks ----------------------------------------------------------------------------

    async def _call_back(self, notified: Notified, acks: list[Ack], *, done: bool) -> bool:
        """Returns whether it had an effect. Raises `InvariantBroken` if it must not have had one,
        or must."""
        ledger, is_sure = self.ledger(notified.name), True
        for _ in range(30):
            latest, ended = ledger.latest_generation, notified.wake_id in ledger.ended
            if done:
                ledger.ended.add(notified.wake_id)
            try:
                outcome, at_ms = await self._propose(notified, acks, done=done)
            except (Unavailable, OutcomeUnknown):
                is_sure = False
                await trio.sleep(0.5)
                continue
            if outcome is None or outcome.result is Result.FENCED:
                self.counted["fenced"] += 1
                is_held = at_ms < notified.lease_until_ms
                if is_sure and not ended and is_held and latest == notified.generation:
                    raise InvariantBroken(
                        f"{notified.name}: generation {notified.generation} was fenced off at "
                        f"{at_ms}, {notified.lease_until_ms - at_ms} ms before its lease ends"
                    )
                return False
            if outcome.result is Result.ACK_INVALID:
                raise InvariantBroken(f"{notified.name}: {outcome.wake} refuses {acks}")
            assert outcome.wake is not None
            if latest > notified.generation:
                raise InvariantBroken(
                    f"{notified.name}: a callback of generation {notified.generation} took effect "
                    f"after {latest} was received"
                )
            self.counted["called back"] += 1
            if outcome.wake.lease_until_ms is not None and not done:
                notified.lease_until_ms = outcome.wake.lease_until_ms
            return True
        return False

    async def _propose(
        self, notified: Notified, acks: list[Ack], *, done: bool
    ) -> tuple[Outcome | None, int]:
        """The outcome, None for a token that has expired, and the log time of it at the latest.
        Raises `Unavailable`, `OutcomeUnknown`."""
        node = self._any_node()
        try:
            token = verified(node, notified.body)
        except TokenExpired:
            return None, self.log_ms()
        except TokenInvalid:
            raise Unavailable("the node does not know the key yet") from None
        stamp = WakeStamp(token.number, notified.generation, notified.wake_id)
        outcome = await node.group.writes.propose(AcknowledgeWake(notified.name, stamp, acks, done))
        return outcome, self.log_ms() if outcome.wake is None else outcome.wake.now_ms

    def _any_node(self) -> Node:
        up = [one for one in self.machines if one.is_ready]
        if not up:
            raise Unavailable("no node is up")
        return self.random.choice(up).node

    def log_ms(self) -> int:
        """The latest log time that any node has applied."""
        up = [one.node for one in self.machines if one.running is not None]
        return max((one.group.state.header.log_ms for one in up), default=0)

    # -- what must hold -----------------------------------------------------------------------

    def check_acknowledged(self, machine: Machine, keys: list[bytes]) -> None:
        """Raises `InvariantBroken` if a node takes for acknowledged what was not worked through,
        or has no wake for what is pending."""
        state = machine.node.group.state
        for subscription in state.subscriptions.records.values():
            self._check_wake(machine, subscription)
            processed = self.ledger(subscription.subscription_id).processed
            for key in keys:
                stream = state.streams.get(key)
                for link in () if stream is None else stream.links:
                    if link.number == subscription.number and link.acked_record > processed[key]:
                        raise InvariantBroken(
                            f"{subscription.subscription_id}: {link} of {key!r}, and its receiver "
                            f"has worked through {processed[key]}"
                        )

    def _check_wake(self, machine: Machine, subscription: Subscription) -> None:
        if subscription.pending and subscription.wake is None:
            raise InvariantBroken(f"node {machine.node_id}: pending without a wake: {subscription}")


def token_of(keyring: Keyring, body: dict[str, Any]) -> int:
    """When the token of a notification ends, in log time."""
    return keyring.verify(body["callback_token"].encode(), "callback").expires_ms


def verified(node: Node, body: dict[str, Any]) -> WakeToken:
    return node.keyring.verify(body["callback_token"].encode(), "callback")


class Outgoing:
    """The way from one machine to the receivers, on which requests and answers get lost."""

    def __init__(self, machine: Machine, receivers: Receivers) -> None:
        self._machine = machine
        self._receivers = receivers

    async def post(self, url: str, body: bytes, signature: str) -> bytes:
        """As `Poster.post`."""
        receivers, random = self._receivers, self._receivers.random
        if self._machine.running is None:
            await trio.sleep_forever()  # It was killed a moment ago, and this task is to end.
        notified = receivers.taken(self._machine, body)
        receivers.on_step("posted", self._machine)
        await trio.sleep(random.random() * 0.05)
        if random.random() < receivers.loss:
            receivers.counted["lost requests"] += 1
            raise DeliveryFailed("the connection broke")
        came, found = trio.Event(), [b""]

        def answer(given: bytes | None) -> None:
            if given is None:
                found.clear()
            else:
                found[0] = given
            came.set()

        receivers.on_step("received", self._machine)
        # A receiver works on whether the one that asked it lives or not.
        receivers.nursery.start_soon(receivers.receive, notified, answer)
        with trio.move_on_after(TIMEOUT_S):
            await came.wait()
        if random.random() < receivers.loss or not came.is_set() or not found:
            raise DeliveryFailed("there was no answer")
        receivers.on_step("answered", self._machine)
        await trio.sleep(random.random() * 0.05)
        return found[0]
