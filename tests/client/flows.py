"""Plays the driver of a flow, so that a test is the server, the network and the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from streamd.client.core.retrying import Session
from streamd.client.core.steps import (
    Answer,
    Discard,
    Done,
    Emit,
    Flow,
    Lost,
    Pause,
    Receive,
    Send,
    Step,
    resume,
)


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


def refused(status: int, code: str = "", **headers: str) -> Answer:
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    body = b'{"error":{"code":"%b","message":"so"}}' % code.encode() if code else b"<h1>"
    return Answer(status, named, body)


class Network:
    """Answers requests from a script, and keeps what was asked. Pauses pass at once."""

    def __init__(self, script: Iterable[Any] | Callable[[Send], Any]) -> None:
        self._answer = script if callable(script) else self._next
        self._script = iter(() if callable(script) else script)
        self.sent: list[Send] = []
        self.pauses: list[float] = []
        self.now_s = 0.0

    def _next(self, _: Send) -> Any:
        return next(self._script)

    def __call__(self, step: Step) -> Any:
        match step:
            case Pause(seconds):
                self.pauses.append(seconds)
                self.now_s += seconds
                return None
            case Send():
                self.sent.append(step)
                return self._answer(step)
            case Receive():
                return next(self._script, b"")
            case Discard():
                return None
        raise AssertionError(step)

    def session(self, *urls: str, **settings: Any) -> Session:
        """A session on this network's clock, whose jitter takes the longest pause."""
        return Session(
            urls or ("http://a",), clock=lambda: self.now_s, jitter=lambda _, most: most, **settings
        )

    @property
    def hosts(self) -> list[str]:
        return [send.url.split("/")[2] for send in self.sent]
