"""What the handlers of operations act on, and how they answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from random import Random
from typing import ParamSpec

import quart

from streamd.auth.identity import Identity
from streamd.config.settings import Config
from streamd.http.access.needs import Need
from streamd.http.protocol.messages import Response
from streamd.http.protocol.refusals import OPERATORS_REFUSALS, answer_to
from streamd.node.leader_operations import LeaderOperations
from streamd.node.node import Node
from streamd.node.reports import NodeReports
from streamd.process.metrics import Metrics

Answer = tuple[quart.Response, int]

P = ParamSpec("P")

# The key of an ASGI scope with the `Identity` of the request's sender, None if it is not known.
SENDER = "streamd.sender"


@dataclass(frozen=True)
class Operator:
    """A node and its process.

    `leader` takes orders for the cluster's leader, and `reports` are those of its members. `random`
    makes the secrets of tokens. `document` is the OpenAPI document, and `scopes_of` says what a
    request with a method and a raw path needs, None if it is for no stream or bucket. `config` is
    the one that the node was started with.
    """

    node: Node
    leader: LeaderOperations
    reports: NodeReports
    metrics: Metrics
    random: Random
    document: Callable[[], bytes]
    scopes_of: Callable[[str, bytes], Sequence[Need] | None]
    config: Config


def sender() -> Identity | None:
    """The sender of the request that is being answered; None where nobody needs a token."""
    found = quart.request.scope.get(SENDER)
    assert found is None or isinstance(found, Identity)
    return found


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
