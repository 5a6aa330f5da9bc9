"""Random commands about subscriptions of a `random_log.RandomLog`."""

from __future__ import annotations

from random import Random

from streamd.streams import keys
from streamd.streams.commands import Append, Command, Create, Delete
from streamd.streams.model import ProducerStamp, Settings, Stream
from streamd.streams.state import State
from streamd.streams.subscriptions.commands import (
    AcknowledgeWake,
    AddSubscriptionKey,
    BeginDelivery,
    ClaimWake,
    DeleteSubscription,
    EndDelivery,
    EndLeases,
    LinkStreams,
    PutSubscription,
    ReleaseWake,
    UnlinkStream,
    VerifyClaim,
    WakeSubscription,
)
from streamd.streams.subscriptions.model import (
    Ack,
    Credential,
    FenceStamp,
    Subscription,
    SubscriptionConfig,
    WakeStamp,
)
from streamd.streams.subscriptions.signing_keys import SubscriptionKey

JSON = "application/json"
WAKE_KEYS = [keys.stream_key(b"wakes", name) for name in (b"a", b"b")]
FENCED_KEYS = [keys.stream_key(b"one", b"fenced"), keys.stream_key(b"two", b"fenced")]
_IDS = ("mailer", "indexer", "agent", "auditor", "watcher")
_LEASE_MS = 1_000


class RandomSubscriptions:
    """Makes commands that mostly fit the state, and some that do not. `streams` are the keys of
    those that subscriptions may be about."""

    def __init__(self, random: Random, state: State, streams: list[bytes]) -> None:
        self._random = random
        self._state = state
        self._streams = [*streams, *WAKE_KEYS, *FENCED_KEYS]

    def command(self, now_ms: int) -> Command:
        """One that may do something at a log time."""
        random, records = self._random, self._state.subscriptions
        if not records.records or random.random() < 0.15:
            return self._put()
        if random.random() < 0.3:
            return self._fenced(now_ms)
        if random.random() < 0.1:
            return self._wake_stream()
        if random.random() < 0.02:
            number = len(records.keys) and max(records.keys)
            secret = bytes(64 if random.random() < 0.8 else 92)
            key = SubscriptionKey(number + 1, bytes(32), secret)
            return AddSubscriptionKey(key, revokes=number % 3 == 2)
        one = random.choice(list(records.records.values()))
        if random.random() < 0.6:
            return self._about_wake(one, now_ms)
        named = random.sample(self._streams, 2)
        number = self._number(one)
        return random.choice((
            DeleteSubscription(one.subscription_id, number),
            LinkStreams(one.subscription_id, named, number),
            LinkStreams(one.subscription_id, named[:1], number),
            UnlinkStream(one.subscription_id, named[0], number),
            WakeSubscription(one.subscription_id, number),
            DeleteSubscription("nobody"),
        ))  # fmt: skip

    def _put(self) -> Command:
        random = self._random
        pattern = random.choice(("", "one/*", "**", "two/**", "*/s1", "wakes/*", "%2A/x"))
        named = random.sample(self._streams, random.randrange(3))
        if random.random() < 0.4:
            config = SubscriptionConfig("webhook", pattern, "https://w.example/", b"", _LEASE_MS)
        else:
            wake_key = random.choice(WAKE_KEYS)
            config = SubscriptionConfig("pull-wake", pattern, "", wake_key, _LEASE_MS, "why")
        owner = random.choice(("", "token:ci", "anonymous"))
        return PutSubscription(random.choice(_IDS), config, named, owner)

    def _wake_stream(self) -> Command:
        key = self._random.choice(WAKE_KEYS)
        if self._random.random() < 0.2:
            return Delete(key)
        if self._random.random() < 0.3:
            return Append(key, JSON, b"", [], self._random.random() < 0.3)
        return Create(key, Settings(JSON), implicit_bucket=True)

    def _fenced(self, now_ms: int) -> Command:
        """A fenced stream, or a write to one, mostly under the present claim."""
        random, key = self._random, self._random.choice(FENCED_KEYS)
        if self._state.streams.get(key) is None:
            return Create(key, Settings("text/plain", write_fence=True), implicit_bucket=True)
        if random.random() < 0.05:
            return Delete(key)
        one = random.choice(list(self._state.subscriptions.records.values()))
        generation = max(0, one.generation - (random.random() < 0.1))
        wake_id = "w_none" if one.wake is None else one.wake.wake_id
        stamp: FenceStamp | None = FenceStamp(
            one.number, generation, wake_id, one.holder, now_ms + random.choice((-1, 9, 9, 9)),
            random.choice((Credential.WRITE,) * 8 + (Credential.INVALID, Credential.WAKE)),
            random.random() < 0.5,
        )  # fmt: skip
        if random.random() < 0.1:
            assert stamp is not None
            return VerifyClaim(stamp)
        if random.random() < 0.2:
            stamp = None
        stream, name = self._state.streams.get(key), random.choice("fg")
        assert stream is not None
        known = self._state.producers.get(keys.producer_key(stream.stream_id, name))
        is_next = known is not None and known.epoch == generation
        seq = known.seq + 1 if known is not None and is_next else 0
        producer = ProducerStamp(name, generation, seq, True)
        if random.random() < 0.1:
            return Append(key, "text/plain", b"open", [4], fence=stamp)
        close = random.random() < 0.03
        data, lengths = (b"", []) if close else (b"fenced", [6])
        return Append(key, "text/plain", data, lengths, close, None, producer, None, stamp)

    def _about_wake(self, one: Subscription, now_ms: int) -> Command:
        random, name = self._random, one.subscription_id
        wake_id = "w_none" if one.wake is None else one.wake.wake_id
        generation = max(0, one.generation - (random.random() < 0.1))
        stamp = WakeStamp(one.number, generation, wake_id)
        attempts = one.attempts
        is_pull = one.config.kind == "pull-wake"
        if random.random() < 0.15:
            return EndLeases([*self._state.subscriptions.records, 7])
        if not is_pull and one.wake is not None and attempts and random.random() < 0.5:
            done, arrived = random.random() < 0.5, random.random() < 0.5
            return EndDelivery(one.number, wake_id, attempts, arrived, "503", self._acks(one), done)
        if not is_pull and random.random() < 0.6:
            return BeginDelivery(one.number, wake_id, attempts + 1)
        if one.lease_until_ms is None or random.random() < 0.1:
            return ClaimWake(name, random.choice(("w1", "w2")), self._number(one))
        if random.random() < 0.2:
            return ReleaseWake(name, stamp)
        return AcknowledgeWake(name, stamp, self._acks(one), random.random() < 0.5)

    def _number(self, one: Subscription) -> int:
        """The number that a command names: that of the subscription, none, or another one's."""
        [number] = self._random.choices((one.number, 0, one.number + 1), (6, 3, 1))
        return number

    def _acks(self, one: Subscription) -> list[Ack]:
        """What the subscription can acknowledge of some streams, or of others."""
        random, found = self._random, []
        for key in random.sample(self._streams, len(self._streams)):
            stream = self._state.streams.get(key)
            linked = stream is not None and any(link.number == one.number for link in stream.links)
            if stream is not None and (linked or random.random() < 0.02):
                found.append(self._ack(key, stream))
        return found[: random.randrange(len(found) + 1)]

    def _ack(self, key: bytes, stream: Stream) -> Ack:
        if self._random.random() < 0.1:
            return Ack(key, self._random.randrange(stream.records + 2), stream.size)
        return Ack(key, stream.records, stream.size)
