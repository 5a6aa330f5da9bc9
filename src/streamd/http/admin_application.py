"""The application of the listener for operations (``admin.listen``): all operations, and nothing
else."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from streamd.config.settings import ServerConfig
from streamd.http.access import needs
from streamd.http.access.auditor import Auditor
from streamd.http.access.needs import Need
from streamd.http.application import check_coding
from streamd.http.operations import Operations, Ops
from streamd.http.prompt_answers import REFUSALS, PromptAnswers
from streamd.http.protocol.messages import Begun, Later, LiveResponse, Parked, Request, Response
from streamd.http.streams.service import Service

_WITH_BODIES = frozenset(("POST", "PUT"))


class AdminApplication:
    """Answers every request as one for an operation. `server` has the listener's names."""

    def __init__(self, service: Service, ops: Ops, server: ServerConfig) -> None:
        node = service.node
        self._compressor = service.compressor
        self._auditor = Auditor(service.trail, service.authority, _described)
        self._answers = PromptAnswers(
            node.metrics, node.group.writes.submit, self._auditor.answered
        )
        self._operations = Operations(
            ops,
            service.authority,
            self._answers,
            self._auditor,
            service.rates,
            server,
            needs.is_operation,
        )

    def takes_pieces(self, path: bytes) -> bool:
        return False

    def refusal(self, request: Request) -> Response | None:
        """As `Application.refusal`."""
        response = self._operations.refusal(request)
        if response is not None:
            self._auditor.answered(request, response)
        return response

    async def foreseen(self, request: Request) -> Response | None:
        """None: operations have small bodies."""
        return None

    def begin(self, request: Request, later: Later) -> Response | Parked | Begun:
        """As `Application.begin`: operations wait."""
        return Begun.MUST_WAIT

    async def handle(self, request: Request) -> Response | LiveResponse | Parked:
        """As `Application.handle`."""
        started = trio.current_time()
        try:
            if request.method in _WITH_BODIES:
                check_coding(request)
            response = await self._operations.answer(request)
            await self._compressor.compress_any(request, response)
        except REFUSALS as error:
            response = self._answers.refusal(error)
        self._answers.count(request, "ops", response, started)
        return response

    def resume(self, parked: Parked) -> Response | Parked | None:
        """As `Application.resume`, which nothing here calls."""
        raise AssertionError("operations do not park")

    async def go_on(self, parked: Parked) -> Response | LiveResponse | Parked | None:
        """As `Application.go_on`, which nothing here calls."""
        raise AssertionError("operations do not park")


def _described(request: Request) -> tuple[str, Sequence[Need]]:
    """As the auditor wants it."""
    return "ops", needs.operation(request.method, request.path) or ()
