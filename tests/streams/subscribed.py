"""A machine with subscriptions: a webhook's named `hook`, and a worker's named `pull`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from streamd.streams import keys
from streamd.streams.commands import Outcome, Result
from streamd.streams.model import Settings
from streamd.streams.subscriptions.commands import (
    AcknowledgeWake,
    BeginDelivery,
    ClaimWake,
    DeleteSubscription,
    EndDelivery,
    EndLeases,
    LinkStreams,
    PutSubscription,
    ReleaseWake,
    UnlinkStream,
    WakeSubscription,
)
from streamd.streams.subscriptions.linked import LinkedPage, LinkQuery, candidates, shown
from streamd.streams.subscriptions.model import (
    Ack,
    Subscription,
    SubscriptionConfig,
    WakeReport,
    WakeStamp,
)
from tests.streams.driver import JSON, TEXT, Driver, key

LEASE_MS = 1_000
WAKES = "wakes"
HOOK = SubscriptionConfig("webhook", "b/*", "https://worker.example/hooks", b"", LEASE_MS)
PULL = SubscriptionConfig("pull-wake", "b/*", wake_key=key(WAKES), lease_ttl_ms=LEASE_MS)


class Subscribed(Driver):
    """Streams are those of the bucket `b`, named as in `Driver`."""

    def put(
        self, config: SubscriptionConfig, name: str = "", streams: Sequence[str] = ()
    ) -> Outcome:
        name = name or ("hook" if config.kind == "webhook" else "pull")
        return self.do(PutSubscription(name, config, [key(stream) for stream in streams]))

    def drop(self, name: str) -> Result:
        return self.do(DeleteSubscription(name)).result

    def named(self, name: str) -> Subscription:
        found = self.state.subscriptions.by_id(name)
        assert found is not None, name
        return found

    def link(self, name: str, *streams: str) -> Result:
        return self.do(LinkStreams(name, [key(stream) for stream in streams])).result

    def unlink(self, name: str, stream: str) -> Result:
        return self.do(UnlinkStream(name, key(stream))).result

    def create_wakes(self) -> None:
        self.create(WAKES, JSON)

    def events(self) -> list[dict[str, Any]]:
        """What the wake stream holds."""
        decoded: list[dict[str, Any]] = msgspec.json.decode(
            b"[" + self.content(WAKES).rstrip(b",") + b"]"
        )
        return decoded

    # -- workers ------------------------------------------------------------------------------

    def wake(self, name: str) -> Outcome:
        return self.do(WakeSubscription(name))

    def claim(self, name: str = "pull", worker: str = "w") -> Outcome:
        return self.do(ClaimWake(name, worker))

    def claimed(self, name: str = "pull") -> WakeStamp:
        """A claim that is granted."""
        outcome = self.claim(name)
        assert outcome.result is Result.DONE, outcome
        return stamp_of(outcome)

    def stamp(self, name: str) -> WakeStamp:
        """The outstanding wake."""
        return stamp_of(Outcome(Result.DONE, wake=WakeReport.of(self.named(name), 0)))

    def ack(self, name: str, stamp: WakeStamp, *streams: str | Ack, done: bool = False) -> Outcome:
        """Acknowledge streams up to their tails, or as far as an `Ack` says."""
        acks = [one if isinstance(one, Ack) else self.whole(one) for one in streams]
        return self.do(AcknowledgeWake(name, stamp, acks, done))

    def whole(self, stream: str) -> Ack:
        found = self.stream(stream)
        return Ack(key(stream), found.records, found.size)

    def release(self, name: str, stamp: WakeStamp) -> Outcome:
        return self.do(ReleaseWake(name, stamp))

    # -- the leader ---------------------------------------------------------------------------

    def begin(self, attempt: int = 1, name: str = "hook", wake_id: str | None = None) -> Outcome:
        found = self.named(name)
        if wake_id is None:
            wake_id = "" if found.wake is None else found.wake.wake_id
        return self.do(BeginDelivery(found.number, wake_id, attempt))

    def end(
        self,
        attempt: int = 1,
        *streams: str,
        why: str = "",
        done: bool = False,
        wake_id: str | None = None,
    ) -> Outcome:
        """An attempt succeeds, or with `why` fails."""
        found = self.named("hook")
        if wake_id is None:
            wake_id = "" if found.wake is None else found.wake.wake_id
        acks = [self.whole(one) for one in streams]
        return self.do(EndDelivery(found.number, wake_id, attempt, not why, why, acks, done))

    def end_leases(self) -> None:
        """What the leader does about everything that is due."""
        times = self.state.subscriptions.due
        due = times.take(self.now_ms, 100)
        assert self.do(EndLeases([0, *due])).result is Result.DONE
        for number in due:
            times.put_back(number)

    # -- what is listed -----------------------------------------------------------------------

    def listed(
        self,
        name: str,
        letter: bytes = keys.LINKED,
        *,
        after: bytes = b"",
        limit: int = 1_000,
        with_pattern: bool = True,
    ) -> LinkedPage:
        """A page of a subscription's streams, as a node reads it."""
        found, records = self.named(name), self.state.subscriptions
        query = LinkQuery(
            letter,
            found.number,
            records.rows.unstored(letter, found.number),
            tuple(records.named_by(found.number)),
            found.config.pattern if with_pattern else "",
            after,
            limit,
        )
        page = candidates(self.store, query)
        named = records.named_by(found.number)
        streams = [
            shown(each, self.state.streams.get(each), found, named, self.now_ms)
            for each in page.keys
        ]
        return LinkedPage([one for one in streams if one is not None], page.cursor)

    def acked(self, name: str, stream: str) -> int | None:
        """How many records of a stream a subscription has acknowledged; None without a link."""
        for one in self.listed(name).streams:
            if one.key == key(stream):
                return one.acked.record
        return None


def stamp_of(outcome: Outcome) -> WakeStamp:
    report = outcome.wake
    assert report is not None
    return WakeStamp(report.number, report.generation, report.wake_id)


def plain(name: str, content_type: str = TEXT) -> tuple[bytes, Settings]:
    """The key and the settings of a stream."""
    return key(name), Settings(content_type)
