"""Operations on the cluster in several steps, and the feature level: any node takes the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from quart import jsonify, request

from streamd.audit_trail.trail import note
from streamd.config.settings import split_address
from streamd.http.admin.operator import Answer, Operator, sender
from streamd.node.operations import Operations
from streamd.protocol.problems import Problem
from streamd.streams.operations.model import (
    MAX_ADDRESSES,
    MAX_TEXT_BYTES,
    MAX_WINDOW_MS,
    STABILITY_WINDOW_MS,
    Arguments,
    Kind,
    report,
)
from streamd.streams.operations.requests import (
    Begin,
    Cancel,
    Confirm,
    Pause,
    RaiseFeatures,
    Resume,
)

_MAX_ID = 2**63 - 1
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_BYTES // 4)]


class NewOperation(msgspec.Struct, forbid_unknown_fields=True):
    """An operation to begin; with `dry_run` only its steps are answered. `node_id` is the node to
    replace, remove, drain or restart; `addresses` are the peer addresses of nodes to add; `release`
    is the one to upgrade to. Between two steps the cluster must be well for `window_ms`."""

    kind: Kind
    node_id: Annotated[int, msgspec.Meta(ge=0, le=_MAX_ID)] = 0
    addresses: Annotated[list[_Text], msgspec.Meta(max_length=MAX_ADDRESSES)] = []
    release: _Text = ""
    window_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_WINDOW_MS)] = STABILITY_WINDOW_MS
    dry_run: bool = False


# What an operator can do to one that was begun, by the last segment of the path.
ACTS: Mapping[str, type[Pause] | type[Resume] | type[Cancel] | type[Confirm]] = {
    "pause": Pause,
    "resume": Resume,
    "cancel": Cancel,
    "done": Confirm,
}


async def list_all(operator: Operator) -> Answer:
    """All operations that are remembered, the latest one last."""
    recorded = (await _caught_up(operator)).recorded()
    return _json({"operations": [report(one) for one in recorded]})


async def show(operator: Operator, operation: str) -> Answer:
    """One operation, by its number."""
    operation_id = _id(operation)
    for one in (await _caught_up(operator)).recorded():
        if one.operation_id == operation_id:
            return _json(report(one))
    raise Problem.OPERATION_NOT_FOUND.error()


async def begin(operator: Operator) -> Answer:
    """Begin what the body asks for."""
    asked = msgspec.json.decode(await request.get_data() or b"{}", type=NewOperation)
    for address in asked.addresses:
        split_address("addresses", address)
    note(**msgspec.to_builtins(asked))
    arguments = Arguments(asked.node_id, tuple(asked.addresses), asked.release, asked.window_ms)
    command = Begin(asked.kind, arguments, _sender(), asked.dry_run)
    found = await _operations(operator).perform(command)
    return _json(found, 200 if asked.dry_run else 201)


async def act(operator: Operator, operation: str, kind: str) -> Answer:
    """Pause, resume or cancel an operation, or tell it that its operator has done a step."""
    operation_id = _id(operation)
    note(operation=operation_id)
    return _json(await _operations(operator).perform(ACTS[kind](operation_id, _sender())))


async def features(operator: Operator) -> Answer:
    """The feature level, and what each member understands."""
    return _json((await _caught_up(operator)).features())


async def raise_features(operator: Operator) -> Answer:
    """Raise the feature level as far as every member understands."""
    return _json(await _operations(operator).perform(RaiseFeatures(_sender())))


def _operations(operator: Operator) -> Operations:
    """Raises `ProblemError` for a node without peers."""
    found = operator.node.operations
    if found is None:
        raise Problem.NOT_A_CLUSTER.error()
    return found


async def _caught_up(operator: Operator) -> Operations:
    found = _operations(operator)
    await operator.node.group.reads.catch_up()
    return found


def _id(operation: str) -> int:
    """Raises `ProblemError` for what is not a number of an operation."""
    if not (operation.isascii() and operation.isdigit() and 0 < int(operation[:20]) <= _MAX_ID):
        raise Problem.OPERATION_NOT_FOUND.error()
    return int(operation)


def _sender() -> str:
    """The name of the request's sender; empty where nobody has to say who they are."""
    identity = sender()
    return "" if identity is None else identity.name


def _json(found: dict[str, Any], status: int = 200) -> Answer:
    response = jsonify(found)
    response.headers["Cache-Control"] = "no-store"
    return response, status
