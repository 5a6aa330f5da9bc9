"""Answers of the operations app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from http import HTTPStatus
from typing import ParamSpec

from quart import Response, jsonify

from streamd.auth.scopes import ScopeError
from streamd.config.settings import ConfigError
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.http.protocol.fields import BadRequest
from streamd.streams.content import UNDECODABLE

Answer = tuple[Response, int]

P = ParamSpec("P")


def error_answer(code: str, message: str, status: int) -> Answer:
    """An error in the form of every route."""
    response = jsonify(error={"code": code, "message": message})
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = "1"
    return response, status


def answering(handler: Callable[P, Awaitable[Answer]]) -> Callable[P, Awaitable[Answer]]:
    """The handler, which may also raise what a wrong body or parameter or a missing leader
    raises."""

    @wraps(handler)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> Answer:
        try:
            return await handler(*args, **kwargs)
        except (*UNDECODABLE, ConfigError, ScopeError) as error:
            return error_answer("INVALID_REQUEST", str(error), 400)
        except BadRequest as error:
            return error_answer(error.code, str(error), error.status)
        except Unavailable as error:
            return error_answer(error.code, str(error), 503)
        except OutcomeUnknown as error:
            return error_answer("OUTCOME_UNKNOWN", str(error), 503)

    return answer
