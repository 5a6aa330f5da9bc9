"""What the adapters serve, and how they call it: a bug that one request meets ends no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Protocol, TypeVar, TypeVarTuple

import structlog

from streamd.http.protocol.messages import LateAnswer, LiveResponse, Parked, Request, Response
from streamd.http.protocol.refusals import error_response
from streamd.protocol.problems import Problem

log = structlog.get_logger("streamd.http")

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Begun(Enum):
    """What has become of a request that is not answered at once (`Application.begin`)."""

    UNDER_WAY = "under way"
    MUST_WAIT = "must wait"


# What has become of a request that was begun; an exception is a bug that it met.
Fate = Response | Parked | Begun | Exception
# Makes answers of what its argument tells; an exception is a bug that this answer met.
Make = Callable[[Any], Sequence[Response | LiveResponse | Exception]]
# Takes the places of requests among those that were begun, what makes their answers, in that order,
# and its argument.
Later = Callable[[Sequence[int], Make, Any], None]


class Application(Protocol):
    """What the adapters serve."""

    def takes_pieces(self, path: bytes) -> bool:
        """Whether the handler of a PUT to the raw `path` receives the body in pieces."""
        ...

    def refusal(self, request: Request) -> Response | LateAnswer | None:
        """The answer to a request that is refused by its head, so that its body is not received;
        asked only where it would be waited for. `begin` and `handle` refuse the same requests."""
        ...

    async def foreseen(self, request: Request) -> Response | None:
        """The answer to a request that `refusal` admits, but that nothing in its body can save."""
        ...

    def begin(self, requests: Sequence[Request], later: Later) -> Sequence[Fate]:
        """Answer requests that came together, in their order and without waiting.

        Or begin some: `UNDER_WAY` says that `later` will be called once for this one, and maybe
        for others with it, after the return. Or do nothing: `MUST_WAIT` leaves the request to
        `handle`. What becomes of each is what would become of it alone.
        """
        ...

    async def handle(self, request: Request) -> Response | LiveResponse | Parked:
        """Answer `request`. A client can cause no exception but `ClientGone`."""
        ...

    def resume(self, parked: Parked) -> Response | Parked | None:
        """As `Parked.resume`, of a request that was begun or handled here."""
        ...

    async def go_on(self, parked: Parked) -> Response | LiveResponse | Parked | None:
        """As `Parked.go_on`. A client can cause no exception but `ClientGone`."""
        ...


class BugGuard:
    """Calls the application for an adapter: a request that meets a bug is answered 500, and the
    bug is logged. `fatal` errors end the server; what waits may also raise one of `expected`."""

    def __init__(
        self, fatal: tuple[type[BaseException], ...], *expected: type[BaseException]
    ) -> None:
        self._fatal = fatal
        self._passed_on = (*fatal, *expected)

    def call(self, method: str, call: Callable[[*Args], T], *args: *Args) -> T | Response:
        """What `call` returns for a request with that method, or the answer to one that met a
        bug."""
        try:
            return call(*args)
        except Exception as bug:
            return self.answer(method, bug)

    def answer(self, method: str, bug: Exception) -> Response:
        """The answer to a request with that method that met a bug. Raises one that is fatal."""
        if isinstance(bug, self._fatal):
            raise bug
        return _internal_error(method, bug)

    async def wait(self, method: str, answering: Awaitable[T]) -> T | Response:
        """As `call`, of what has to be waited for."""
        try:
            return await answering
        except self._passed_on:
            raise
        except Exception as bug:
            return _internal_error(method, bug)


def _internal_error(method: str, bug: Exception) -> Response:
    """The answer to a request that met a bug."""
    log.error("handler failed", method=method, exc_info=bug)
    return error_response(Problem.INTERNAL, close=True)
