"""A wake in the hands of a thread, whose lease another thread renews."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from threading import Event, Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING

from streamd.client.core.producing import ProducerSettings, producer
from streamd.client.core.steps import Flow
from streamd.client.core.streams import StreamFlows
from streamd.client.core.waking import GenerationEpochs, HeldWake
from streamd.client.errors import LeaseLost, StreamdError
from streamd.client.limits import time_limit
from streamd.client.names import parse_name
from streamd.client.producing import Producer
from streamd.client.subscription_values import SubscribedStream

if TYPE_CHECKING:
    from streamd.client.driving import Driver

# How long a block that failed may take to give its wake back.
_RELEASE_S = 2.0


class Wake:
    """A wake: a subscription's pending streams, for this worker alone as long as its lease lasts.

    A context manager: it waits for the wake, and renews the lease until the block ends. The end
    acknowledges what the wake came for: each pending stream up to the `tail_offset` that it has
    here, unless `ack` named it. A block that raises gives the wake back, so that another worker
    tries; a webhook's comes again when its lease ends. If the lease is lost, `LeaseLost` ends the
    block: in a task at once, and in a thread by the next call, also of `check`, or at the end.
    """

    def __init__(self, driver: Driver, begin: Flow[HeldWake]) -> None:
        self._driver = driver
        self._begin = begin
        self._wake: HeldWake | None = None
        # A heartbeat that arrived after the end would be refused, and look like a lost lease.
        self._telling = Lock()
        self._left = Event()

    def __enter__(self) -> Wake:
        if self._wake is not None:
            raise ValueError("a wake is used in one block, and once")
        self._wake = self._driver.run(self._begin)
        self._thread = Thread(
            target=self._renew, args=(self._wake,), name="streamd-wake", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self._give_back()
            elif not self._held.is_over:
                try:
                    self.done()
                except BaseException:
                    self._give_back()
                    raise
        finally:
            self._left.set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._wake and self._wake.claim.wake_id}>"

    @property
    def _held(self) -> HeldWake:
        if self._wake is None:
            raise ValueError("a wake is used within its `with` block")
        return self._wake

    @property
    def wake_id(self) -> str:
        """The wake's id."""
        return self._held.claim.wake_id

    @property
    def generation(self) -> int:
        """The wake's number: greater than those of all earlier wakes of the subscription."""
        return self._held.claim.generation

    @property
    def streams(self) -> tuple[SubscribedStream, ...]:
        """The subscription's streams, as they were when the wake came; 1,000 at most."""
        return self._held.claim.streams

    @property
    def pending(self) -> list[SubscribedStream]:
        """Those that have something after their `acked_offset`."""
        return self._held.pending

    @property
    def write_token(self) -> str | None:
        """What writes to fenced streams carry now, if there are any; each renewal changes it."""
        return self._held.write_token

    def check(self) -> None:
        """Raise `LeaseLost` if the wake is lost, and `ValueError` if it has ended."""
        self._held.check()

    def ack(self, handled: Mapping[str, str]) -> None:
        """Acknowledge streams, by name, each up to a position after a message or chunk.

        It renews the lease, too. The server counts whole appends: a position within an append of
        several messages acknowledges those before it. Raises `LeaseLost`, `InvalidOffset`.
        """
        with self._telling:
            self._driver.run(self._held.ack(handled))

    def done(self, handled: Mapping[str, str] | None = None) -> bool:
        """End the wake: acknowledge `handled` and no more, or else what the end of the block does.

        Returns whether the next wake is there already. Raises `LeaseLost`, `InvalidOffset`, and
        `OutcomeUnknown` if the answer to a first try was lost and the wake is over.
        """
        with self._telling:
            return self._driver.run(self._held.done(handled))

    def release(self) -> None:
        """Give the wake back, for another worker. What `ack` named stays acknowledged."""
        with self._telling:
            self._driver.run(self._held.release())

    def producer(
        self,
        name: str,
        producer_id: str,
        *,
        linger_s: float = 0.005,
        max_batch_bytes: int = 256 * 1024,
        max_in_flight: int = 4,
        max_queued_bytes: int = 16 * 1024 * 1024,
    ) -> Producer:
        """A producer of the stream `name` whose epoch is the generation of the wake.

        Its first append ends that of every earlier wake; `ProducerFenced` says that a later wake
        has written. To a stream with `write_fence`, which the subscription must link, it writes
        with the wake's token: the server takes nothing from it once the wake is over (`Fenced`).
        """
        held = self._held
        flows = producer(
            StreamFlows(held.session, parse_name(name), None),
            producer_id,
            GenerationEpochs(held.claim.generation),
            ProducerSettings(linger_s, max_batch_bytes, max_in_flight, max_queued_bytes),
            held,
        )
        return Producer(self._driver, flows, max_in_flight)

    def _renew(self, wake: HeldWake) -> None:
        """Renew the lease until the wake ends, or is lost."""
        while not (wake.is_over or wake.lost is not None):
            if self._left.wait(max(min(wake.beat_s, wake.left_s), 0.0)):
                return
            left_s = max(wake.left_s, 0.0)
            if not self._telling.acquire(timeout=left_s):
                wake.expire()
                return
            try:
                with time_limit(wake.left_s):
                    if not wake.is_over:
                        self._driver.run(wake.ack({}))
            except TimeoutError:
                wake.expire()
            except LeaseLost:
                return
            except StreamdError:
                continue  # The next one may get through before the lease ends.
            finally:
                self._telling.release()

    def _give_back(self) -> None:
        """After a failure: quietly, because the failure is what counts."""
        held = self._held
        if held.is_over or held.lost is not None:
            return
        with suppress(StreamdError, TimeoutError), time_limit(_RELEASE_S):
            self._driver.run(held.release())
