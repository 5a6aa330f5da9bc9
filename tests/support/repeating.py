"""Requests that may be repeated are repeated, as by any client: a busy node may answer 503."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

Answer = TypeVar("Answer", bound="tuple[Any, ...]")

UNAVAILABLE = 503
_PATIENCE_S = 40.0
_POLL_S = 0.1


def served(ask: Callable[[], Answer]) -> Answer:
    """The first answer other than 503, or the last one when time has run out.

    An answer begins with its status. `ask` sends what may be done twice: a read, or the creation of
    a stream.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        answer = ask()
        if answer[0] != UNAVAILABLE or time.monotonic() > deadline:
            return answer
        time.sleep(_POLL_S)
