"""Answers of the operations app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

import quart

from streamd.http.protocol.messages import Response
from streamd.http.protocol.refusals import OPERATORS_REFUSALS, answer_to

Answer = tuple[quart.Response, int]

P = ParamSpec("P")


def answering(handler: Callable[P, Awaitable[Answer]]) -> Callable[P, Awaitable[Answer]]:
    """The handler, which may also raise one of `OPERATORS_REFUSALS`."""

    @wraps(handler)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> Answer:
        try:
            return await handler(*args, **kwargs)
        except OPERATORS_REFUSALS as error:
            return refusal(answer_to(error))

    return answer


def refusal(response: Response) -> Answer:
    """An error's answer as Quart's."""
    assert isinstance(response.body, bytes)
    lines = response.head.decode().splitlines()
    headers = dict(line.split(": ", 1) for line in lines)
    return quart.Response(response.body, headers=headers), response.status
