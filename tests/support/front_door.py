"""Requests to an application as the front door makes them, without a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from streamd.http.door.parking import wait
from streamd.http.protocol.application import Application, Begun
from streamd.http.protocol.messages import LiveResponse, Parked, Request, Response


async def answer(application: Application, request: Request) -> Response | LiveResponse:
    """Let `application` answer: by `begin` where it can, as for a plain connection."""
    made: list[Response | LiveResponse] = []
    answered = trio.Event()

    def later(make: Callable[[Any], Response | LiveResponse], argument: Any) -> None:
        made.append(make(argument))
        answered.set()

    begun = application.begin(request, later)
    if begun is Begun.UNDER_WAY:
        await answered.wait()
        [response] = made
        return response
    found: Response | LiveResponse | Parked | None
    found = await application.handle(request) if begun is Begun.MUST_WAIT else begun
    while not isinstance(found, Response | LiveResponse):
        assert found is not None, "only a live response ends without an answer"
        found = await wait(application, found, request.channel)
    return found
