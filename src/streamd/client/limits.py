"""A time limit for blocking calls; asynchronous code has `anyio.fail_after` for this."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let the library's blocking calls in this block last `seconds` together at most.

    The one that would last longer raises `TimeoutError`. A write may have taken effect then, as
    with `OutcomeUnknown`. A wait for the next chunk or message may be repeated: what is under way
    goes on meanwhile. Blocks may be nested, and hold for their own thread.

    >>> from streamd.client import Client, time_limit
    >>> with Client("http://127.0.0.1:4437") as client:
    ...     info = client.stream("help/quiet").create("application/json")
    ...     messages = client.stream("help/quiet").follow_json()
    ...     try:
    ...         with time_limit(0.1):
    ...             next(messages)
    ...     except TimeoutError:
    ...         print("no news")
    ...     messages.close()
    no news
    """
    outer = _deadline.get()
    deadline = time.monotonic() + seconds
    token = _deadline.set(deadline if outer is None else min(outer, deadline))
    try:
        yield
    finally:
        _deadline.reset(token)


def time_left_s() -> float | None:
    """How long a call may still last; None without a limit. Raises `TimeoutError`."""
    deadline = _deadline.get()
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise too_late()
    return left


def too_late() -> TimeoutError:
    """The error when the time is over."""
    return TimeoutError("the time limit of this block is over")
