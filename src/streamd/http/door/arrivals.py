"""Requests that came in one batch of the reactor's calls: begun together, and answered together.

What is paid for each batch instead of each request is most of what a small request costs: the
judgement of a head that all share, the way into the log, the call that sends an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from streamd.http.door.reactor import Reactor, Watched
from streamd.http.door.states import WrongTransition
from streamd.http.protocol.application import Application, Begun, Fate, Make
from streamd.http.protocol.messages import LiveResponse, Request
from streamd.http.sockets.batch_io import send_each


class Arrived(Watched, Protocol):
    """A connection with a request that is to be answered, as this module knows it."""

    def must_wait(self, request: Request) -> None:
        """Let a task serve the request. Raises `WrongTransition`."""

    def follow(self, fate: Fate | LiveResponse) -> tuple[int, bytes] | None:
        """Go on with what has become of the request. Returns a socket and an answer to send to it
        at once, if that is all that is left to do; then `sent` is called. Raises
        `WrongTransition`."""

    def sent(self, answer: bytes, taken: int) -> None:
        """Note that the socket took so many bytes of the answer. Raises `WrongTransition`."""


class Arrivals(AbstractContextManager[None]):
    """The requests of a block that must not wait; they are begun at its end, within `gathering`."""

    def __init__(self, application: Application, gathering: AbstractContextManager[None]) -> None:
        """`reactor` is the one whose batches of calls are such blocks."""
        self.reactor = Reactor(self)
        self._application = application
        self._gathering = gathering
        self._connections: list[Arrived] = []
        self._requests: list[Request] = []

    def add(self, connection: Arrived, request: Request) -> None:
        """Begin a connection's request together with the others."""
        self._connections.append(connection)
        self._requests.append(request)

    def __enter__(self) -> None:
        self._gathering.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        try:
            if self._requests and kind is None:
                connections, self._connections = self._connections, []
                requests, self._requests = self._requests, []
                self.serve(connections, requests)
        finally:
            self._gathering.__exit__(kind, *rest)

    def serve(self, connections: Sequence[Arrived], requests: Sequence[Request]) -> None:
        """Begin a request of each of these connections, and answer what can be answered at once."""
        self.reactor.pause_all(connections)
        fates: Sequence[Fate]
        try:
            fates = self._application.begin(requests, partial(self._answer_later, connections))
        except Exception as bug:
            fates = [bug] * len(requests)
        for connection, request, fate in zip(connections, requests, fates, strict=True):
            if fate is Begun.MUST_WAIT:
                try:
                    connection.must_wait(request)
                except WrongTransition as wrong:
                    wrong.contain()
        self.answer(connections, fates)

    def _answer_later(
        self, connections: Sequence[Arrived], places: Sequence[int], make: Make, argument: Any
    ) -> None:
        asking = [connections[place] for place in places]
        self.reactor.now(len(asking), self._make_answers, asking, make, argument)

    def _make_answers(self, connections: Sequence[Arrived], make: Make, argument: Any) -> None:
        answers: Sequence[Fate | LiveResponse]
        try:
            answers = make(argument)
        except Exception as bug:
            answers = [bug] * len(connections)
        self.answer(connections, answers)

    def answer(self, connections: Iterable[Arrived], fates: Iterable[Fate | LiveResponse]) -> None:
        """Let connections go on with what has become of their requests; answers go out
        together."""
        asking: list[Arrived] = []
        descriptors: list[int] = []
        pieces: list[bytes] = []
        for connection, fate in zip(connections, fates, strict=True):
            if isinstance(fate, Begun):
                continue
            try:
                sending = connection.follow(fate)
            except WrongTransition as wrong:
                wrong.contain()
                continue
            if sending is not None:
                asking.append(connection)
                descriptors.append(sending[0])
                pieces.append(sending[1])
        if not asking:
            return
        taken = list(map(len, pieces))
        for place, size in send_each(descriptors, pieces):
            taken[place] = size
        self.reactor.resume_all(asking)
        for connection, piece, size in zip(asking, pieces, taken, strict=True):
            try:
                connection.sent(piece, size)
            except WrongTransition as wrong:
                wrong.contain()
