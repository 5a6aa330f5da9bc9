"""Plays the driver of a flow, so that a test is the server, the network and the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from streamd.client.core.steps import Done, Emit, Flow, Lost, Step, resume


def emitted(flow: Flow[Any], play: Callable[[Step], Any]) -> Iterator[Any]:
    """What a flow emits. `play` returns the result of each other step; a `Lost` fails it."""
    result: Any = None
    while True:
        is_lost = isinstance(result, Lost)
        step = resume(flow, None if is_lost else result, result if is_lost else None)
        if isinstance(step, Done):
            return
        result = None
        if isinstance(step, Emit):
            yield step.value
        else:
            result = play(step)


def result_of(flow: Flow[Any], play: Callable[[Step], Any]) -> Any:
    """The result of a flow that emits nothing."""
    result: Any = None
    while True:
        is_lost = isinstance(result, Lost)
        step = resume(flow, None if is_lost else result, result if is_lost else None)
        if isinstance(step, Done):
            return step.value
        assert not isinstance(step, Emit), "it emits nothing"
        result = play(step)
