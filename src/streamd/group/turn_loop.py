"""When a group takes its turns."""

from __future__ import annotations

from collections.abc import Callable

import trio


class TurnLoop:
    """Lets a group take a turn soon after something happened, one for all that happened till then.

    A task takes them. Waking it costs a pass of Trio's loop, several times what a turn for one
    write does, so a task that is at it takes the turn itself (`now`). As a context manager, whose
    block must not wait, it takes one turn at the end for all that happened in the block.
    """

    def __init__(self, take: Callable[[trio.Nursery], None]) -> None:
        """`take` takes a turn."""
        self._take = take
        self._is_due = True  # outside `run`
        self._woken = trio.lowlevel.ParkingLot()
        self._gathers = False
        self._gathered = False
        self._failure: Exception | None = None

    def wake(self) -> None:
        """Let a turn be taken; further calls before that turn add nothing."""
        if not self._is_due:
            self._is_due = True
            if self._gathers:
                self._gathered = True
            else:
                self._woken.unpark()

    def now(self) -> None:
        """Take a turn at once, unless the task is about to. What the turn raises, `run` raises."""
        if self._is_due:
            return
        try:
            self._take(self._nursery)
        except Exception as error:
            # It may have left things half done: nothing may store them, nor another turn go on.
            self._failure = error
            self._is_due = True
            self._nursery.cancel_scope.cancel()

    def __enter__(self) -> None:
        self._gathers = True

    def __exit__(self, *_: object) -> None:
        self._gathers = False
        if self._gathered:
            self._gathered = self._is_due = False
            self.now()

    async def run(self, nursery: trio.Nursery) -> None:
        """Take turns until cancelled; `nursery` is for what they start. Raises what a turn raises,
        also one that another task took, and cancels `nursery` then."""
        self._nursery = nursery
        try:
            while True:
                self._is_due = False
                self._take(nursery)
                if self._is_due:
                    await trio.lowlevel.checkpoint()
                else:
                    await self._woken.park()
        except trio.Cancelled:
            if self._failure is not None:
                raise self._failure from None
            raise
        finally:
            self._is_due = True
