"""Requests to an application as the front door makes them, without a socket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from streamd.http.door.parking import wait
from streamd.http.protocol.application import Application, Begun, Fate, Make
from streamd.http.protocol.messages import LiveResponse, Parked, Request, Response


async def answer(application: Application, request: Request) -> Response | LiveResponse:
    """Let `application` answer: by `begin` where it can, as for a plain connection."""
    made: list[Response | LiveResponse | Exception] = []
    answered = trio.Event()

    def later(_: Sequence[int], make: Make, argument: Any) -> None:
        made.extend(make(argument))
        answered.set()

    fate: Fate | LiveResponse
    [fate] = application.begin([request], later)
    if fate is Begun.UNDER_WAY:
        await answered.wait()
        [fate] = made
    if isinstance(fate, Exception):
        raise fate
    found: Response | LiveResponse | Parked | None
    found = await application.handle(request) if isinstance(fate, Begun) else fate
    while not isinstance(found, Response | LiveResponse):
        assert found is not None, "only a live response ends without an answer"
        found = await wait(application, found, request.channel)
    return found
