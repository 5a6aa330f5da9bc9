"""A machine with a fenced stream, and what its workers write."""

from __future__ import annotations

from streamd.streams.checks import fault
from streamd.streams.commands import Append, Create, Outcome, Result
from streamd.streams.fencing import seals
from streamd.streams.fencing.fences import Seal
from streamd.streams.model import ProducerStamp, Settings
from streamd.streams.subscriptions.commands import ClaimWake, PutSubscription
from streamd.streams.subscriptions.model import (
    FenceStamp,
    SubscriptionConfig,
    WakeReport,
    WakeStamp,
)
from tests.streams.driver import JSON, TEXT, Driver, key

LEASE_MS = 30_000
GRACE_MS = 5_000
WAKES = key("wakes")


class Fenced(Driver):
    """A machine with one subscription and a fenced stream `s`."""

    def begin(self, *, pattern: str = "") -> None:
        self.create("wakes", JSON)
        self.make("s")
        self.subscribe(pattern=pattern)

    def make(self, name: str) -> None:
        made = self.do(Create(key(name), Settings(TEXT, write_fence=True), implicit_bucket=True))
        assert made.result is Result.CREATED

    def subscribe(self, *, pattern: str = "") -> None:
        config = SubscriptionConfig("pull-wake", pattern, "", WAKES, LEASE_MS)
        made = self.do(PutSubscription("sub", config, [] if pattern else [key("s")]))
        assert made.result is Result.CREATED

    def claim(self, worker: str = "a") -> FenceStamp:
        outcome = self.do(ClaimWake("sub", worker))
        assert outcome.result is Result.DONE, outcome.result
        wake = outcome.wake
        assert wake is not None
        return stamp_of(wake)

    def write(
        self,
        stamp: FenceStamp | None,
        seq: int = 0,
        *,
        name: str = "s",
        producer: str = "p",
        epoch: int | None = None,
        data: bytes = b"x",
        close: bool = False,
    ) -> Outcome:
        number = (stamp.generation if stamp is not None else 0) if epoch is None else epoch
        command = Append(
            key(name),
            TEXT if data else "",
            data,
            [len(data)] if data else [],
            close=close,
            producer=ProducerStamp(producer, number, seq, counted=True),
            fence=stamp,
        )
        assert fault(command) is None
        return self.do(command)

    def seal(self, name: str = "s") -> Seal | None:
        return seals.view(self.state, self.stream(name)).seal


def stamp_of(wake: WakeReport) -> FenceStamp:
    assert wake.lease_until_ms is not None
    expires_ms = wake.lease_until_ms + GRACE_MS
    return FenceStamp(wake.number, wake.generation, wake.wake_id, wake.holder, expires_ms)


def wake_of(stamp: FenceStamp) -> WakeStamp:
    return WakeStamp(stamp.number, stamp.generation, stamp.wake_id)


def fenced(*, pattern: str = "") -> Fenced:
    driver = Fenced()
    driver.begin(pattern=pattern)
    return driver


def reason(outcome: Outcome) -> str:
    assert outcome.wake is not None
    return outcome.wake.reason
