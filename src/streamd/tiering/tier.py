"""A node's tasks on the cold store: those of every node, and those of the leader.

Every task works in rounds. A round that fails because of the store, or because no leader is known,
is repeated after a growing pause. The work of a round remains done under the next leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Generic, ParamSpec

import structlog
import trio

from streamd.config.settings import ColdConfig, ConfigError
from streamd.group.group import Group
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.objectstore.errors import ColdError, ColdRefused, ColdUnavailable
from streamd.process.cures import cure
from streamd.process.threads import RunBlocking
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.cold_reader import ColdReader

log = structlog.get_logger("streamd.objectstore")

_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 15.0

P = ParamSpec("P")


async def open_cold(
    config: ColdConfig, data_dir: Path, *, run_blocking: RunBlocking, random: Random
) -> AsyncObjectStore:
    """The configured cold store, tried out.

    If it does not answer within `timeout_ms` it may do so later: that is a warning. Raises
    `ConfigError` if it can never work. `run_blocking` should abandon cancelled calls: a call that
    hangs must not keep a node from ending.
    """
    try:
        cold = await run_blocking(AsyncObjectStore.open, config, data_dir, run_blocking, random)
        await cold.check(config.timeout_ms / 1000)
    except ColdUnavailable as error:
        log.warning(
            "the cold store does not answer; old bytes stay on the local disk", error=str(error)
        )
    except ColdError as error:
        raise ConfigError(f"cold: {error}{_advice(error)}") from error
    return cold


def _advice(error: ColdError) -> str:
    """What to do about the system's error that lies beneath, if one does."""
    beneath: BaseException | None = error
    while beneath is not None and not isinstance(beneath, OSError):
        beneath = beneath.__cause__
    return "" if beneath is None else f". {cure(beneath.errno)}"


class LeaderTerm:
    """A node's time as leader of one term, within which it numbers its packs."""

    def __init__(self, term: int) -> None:
        self.term = term
        self._next_number = 0
        # Numbers of packs to which the log may still come to refer.
        self.under_way: set[int] = set()

    @contextmanager
    def pack(self) -> Iterator[int]:
        """Number a pack that is written, and made known to the log, inside."""
        number = self._next_number
        self._next_number += 1
        self.under_way.add(number)
        try:
            yield number
        except OutcomeUnknown:
            raise  # it stays under way for as long as this term lasts
        except BaseException:
            self.under_way.discard(number)
            raise
        self.under_way.discard(number)


class PeriodicTask(Generic[P]):
    """A task in rounds. `make_round` does what is due, and returns in how many seconds to call it
    again."""

    def __init__(self, name: str, make_round: Callable[P, Awaitable[float]]) -> None:
        self.name = name
        self._make_round = make_round
        self._run_now = trio.Event()
        # For operators: why the last round failed, and when one last succeeded, on Trio's clock.
        self.error: str | None = None
        self._kind: type[ColdError] | None = None
        self.failures = 0
        self.done_at: float | None = None

    def run_now(self) -> None:
        """Begin the next round now."""
        self._run_now.set()

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Make rounds until cancelled. Raises `StorageError`."""
        pause_s = _FIRST_PAUSE_S
        while True:
            self._run_now = trio.Event()
            try:
                wait_s = await self._make_round(*args, **kwargs)
                self._went_well()
                pause_s = _FIRST_PAUSE_S
            except (Unavailable, OutcomeUnknown) as error:
                log.info(
                    "a task of the cold store did not complete; it is retried",
                    task=self.name,
                    why=str(error),
                )
                wait_s = _FIRST_PAUSE_S
            except ColdError as error:
                self._failed(error)
                wait_s, pause_s = pause_s, min(2 * pause_s, _MAX_PAUSE_S)
            with trio.move_on_after(wait_s):
                await self._run_now.wait()

    def _went_well(self) -> None:
        if self.error is not None:
            log.info("a task of the cold store succeeds again", task=self.name)
        self.error, self._kind, self.done_at = None, None, trio.current_time()

    def _failed(self, error: ColdError) -> None:
        self.failures += 1
        # Messages name objects, and each round names others.
        if type(error) is not self._kind:
            say = log.error if isinstance(error, ColdRefused) else log.warning
            say("a task of the cold store fails", task=self.name, error=str(error))
        self.error, self._kind = str(error), type(error)


class ColdTier:
    """Owns a node's use of the cold store."""

    def __init__(
        self,
        group: Group,
        cold: AsyncObjectStore,
        reader: ColdReader,
        *,
        node_tasks: list[PeriodicTask[[]]],
        leader_tasks: list[PeriodicTask[[LeaderTerm]]],
    ) -> None:
        self.cold = cold
        self.reader = reader
        self.node_tasks = node_tasks
        self.leader_tasks = leader_tasks
        # While this node leads.
        self.lead: LeaderTerm | None = None
        self._group = group

    async def run(self) -> None:
        """Run until cancelled. Raises `StorageError`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.reader.run)
            for task in self.node_tasks:
                nursery.start_soon(task.run)
            while True:
                await self._lead(LeaderTerm(await self._group.view.wait_to_lead()))

    def run_now(self) -> None:
        """Make the leader's tasks look for work now."""
        for task in self.leader_tasks:
            task.run_now()

    async def _lead(self, lead: LeaderTerm) -> None:
        """Do the leader's work for as long as this node leads in this term."""
        self.lead = lead
        try:
            async with trio.open_nursery() as nursery:
                for task in self.leader_tasks:
                    nursery.start_soon(task.run, lead)
                await self._group.view.wait_for_end_of(lead.term)
                nursery.cancel_scope.cancel()
        finally:
            self.lead = None
