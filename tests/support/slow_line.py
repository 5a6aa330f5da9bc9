"""Calls to a store over a slow line, by a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

from streamd.objectstore.errors import ColdUnavailable

T = TypeVar("T")
Args = TypeVarTuple("Args")


class SlowLine:
    """Runs calls over a slow line, which answers nothing while it `hangs`."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        """`timeout_s` is how long a call hangs before it fails."""
        self._timeout_s = timeout_s
        self.hangs = False
        self.delay_s = 0.0
        self.begun = 0

    async def run(
        self,
        call: Callable[[*Args], T],
        *args: *Args,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        assert limiter is not None
        async with limiter:
            self.begun += 1
            if self.hangs:
                await trio.sleep(self._timeout_s)
                raise ColdUnavailable("timed out")
            await trio.sleep(self.delay_s)
            return call(*args)
