"""A wake in the hands of a task, whose lease another task renews."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import anyio

from streamd.client.async_producing import AsyncProducer
from streamd.client.core.producing import ProducerSettings, producer
from streamd.client.core.steps import Flow
from streamd.client.core.streams import StreamFlows
from streamd.client.core.waking import GenerationEpochs, HeldWake
from streamd.client.errors import LeaseLost, StreamdError
from streamd.client.names import parse_name
from streamd.client.subscription_values import SubscribedStream

if TYPE_CHECKING:
    from streamd.client.async_driving import AsyncDriver

# How long a block that failed may take to give its wake back.
_RELEASE_S = 2.0


class AsyncWake:
    """A wake: a subscription's pending streams, for this worker alone as long as its lease lasts.

    A context manager: it waits for the wake, and renews the lease until the block ends. The end
    acknowledges what the wake came for: each pending stream up to the `tail_offset` that it has
    here, unless `ack` named it. A block that raises gives the wake back, so that another worker
    tries; a webhook's comes again when its lease ends. If the lease is lost, `LeaseLost` ends the
    block: in a task at once, and in a thread by the next call, also of `check`, or at the end.
    """

    def __init__(self, driver: AsyncDriver, begin: Flow[HeldWake]) -> None:
        self._driver = driver
        self._begin = begin
        self._wake: HeldWake | None = None
        # A heartbeat that arrived after the end would be refused, and look like a lost lease.
        self._telling = anyio.Lock()

    async def __aenter__(self) -> AsyncWake:
        if self._wake is not None:
            raise ValueError("a wake is used in one block, and once")
        self._wake = await self._driver.run(self._begin)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._renew, self._wake)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        failure = error
        if error is None and not self._held.is_over:
            try:
                await self.done()
            except BaseException as raised:
                failure = raised
        if failure is not None:
            await self._give_back()
        self._tasks.cancel_scope.cancel()
        if failure is not None and _is_cancelled(failure):
            # It may be the group's own: the lease is lost.
            is_own = await self._tasks.__aexit__(type(failure), failure, failure.__traceback__)
            if is_own and self._held.lost is not None:
                raise self._held.lost from None
            return is_own
        await self._tasks.__aexit__(None, None, None)
        if error is None and failure is not None:
            raise failure
        return None

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

    async def ack(self, handled: Mapping[str, str]) -> None:
        """Acknowledge streams, by name, each up to a position after a message or chunk.

        It renews the lease, too. The server counts whole appends: a position within an append of
        several messages acknowledges those before it. Raises `LeaseLost`, `InvalidOffset`.
        """
        async with self._telling:
            await self._driver.run(self._held.ack(handled))

    async def done(self, handled: Mapping[str, str] | None = None) -> bool:
        """End the wake: acknowledge `handled` and no more, or else what the end of the block does.

        Returns whether the next wake is there already. Raises `LeaseLost`, `InvalidOffset`, and
        `OutcomeUnknown` if the answer to a first try was lost and the wake is over.
        """
        async with self._telling:
            return await self._driver.run(self._held.done(handled))

    async def release(self) -> None:
        """Give the wake back, for another worker. What `ack` named stays acknowledged."""
        async with self._telling:
            await self._driver.run(self._held.release())

    def producer(
        self,
        name: str,
        producer_id: str,
        *,
        linger_s: float = 0.005,
        max_batch_bytes: int = 256 * 1024,
        max_in_flight: int = 4,
        max_queued_bytes: int = 16 * 1024 * 1024,
    ) -> AsyncProducer:
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
        return AsyncProducer(self._driver, flows, max_in_flight)

    async def _renew(self, wake: HeldWake) -> None:
        """Renew the lease until the wake ends; cancel the block if it is lost."""
        while not wake.is_over:
            await anyio.sleep(min(wake.beat_s, wake.left_s))
            try:
                with anyio.fail_after(wake.left_s):
                    async with self._telling:
                        if not wake.is_over:
                            await self._driver.run(wake.ack({}))
            except TimeoutError:
                wake.expire()
            except LeaseLost:
                pass
            except StreamdError:
                continue  # The next one may get through before the lease ends.
            if wake.lost is not None:
                self._tasks.cancel_scope.cancel()
                return

    async def _give_back(self) -> None:
        """After a failure: quietly, because the failure is what counts."""
        held = self._held
        if held.is_over or held.lost is not None:
            return
        with anyio.move_on_after(_RELEASE_S, shield=True), suppress(StreamdError):
            await self._driver.run(held.release())


def _is_cancelled(failure: BaseException) -> bool:
    """Whether it is a cancellation, or a group of nothing else, as Trio's nurseries raise."""
    kind = anyio.get_cancelled_exc_class()
    if isinstance(failure, BaseExceptionGroup):
        return failure.split(kind)[1] is None
    return isinstance(failure, kind)
