"""Keeps a bug that one request meets from other clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import structlog

from streamd.http.protocol.messages import Response, error_response
from streamd.protocol.problems import Problem

log = structlog.get_logger("streamd.http")

T = TypeVar("T")
Args = TypeVarTuple("Args")


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
        except self._fatal:
            raise
        except Exception:
            return _internal_error(method)

    async def wait(self, method: str, answering: Awaitable[T]) -> T | Response:
        """As `call`, of what has to be waited for."""
        try:
            return await answering
        except self._passed_on:
            raise
        except Exception:
            return _internal_error(method)


def _internal_error(method: str) -> Response:
    """The answer to a request that met a bug. Called where the exception is handled."""
    log.exception("handler failed", method=method)
    return error_response(Problem.INTERNAL, close=True)
