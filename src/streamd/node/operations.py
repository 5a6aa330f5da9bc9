"""Operations on the cluster: what operators ask of them, and their driver, at the leader."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import structlog
import trio
from msgspec.structs import replace

from streamd.cluster.administration import Administration, ForOperations
from streamd.group.group import Group
from streamd.group.log_formats import OPERATIONS_FORMAT
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.node.operations_driver import OperationsDriver, Surroundings
from streamd.protocol.problems import Problem, ProblemError
from streamd.streams.commands import RecordOperation, Result
from streamd.streams.operations import changes
from streamd.streams.operations.model import Arguments, Operation, planned, report
from streamd.streams.operations.planning import Newcomer, Refused, View, plan
from streamd.streams.operations.requests import (
    Begin,
    Cancel,
    Confirm,
    OperationRequest,
    Pause,
    Resume,
)

log = structlog.get_logger("streamd.operations")

# How often a new leader looks whether it may raise the features without being asked.
_RAISE_S = 1.0
# How often an operator's change is made again because another one came first.
_TRIES = 10


class ClusterView(Surroundings, Protocol):
    """The surroundings of the driver, with what a plan needs besides."""

    def meet(self, addresses: Sequence[str]) -> Awaitable[tuple[Newcomer, ...]]:
        """The nodes that answer at some addresses, of those that do so soon."""


class Operations:
    """Takes requests about operations at any node, and runs the driver while this node leads."""

    def __init__(
        self, group: Group, administration: Administration, surroundings: ClusterView
    ) -> None:
        self._group = group
        self._administration = administration
        self._around = surroundings
        self._driver = OperationsDriver(surroundings)
        administration.operate = self._operate

    async def perform(self, request: OperationRequest) -> dict[str, Any]:
        """Carry out a request, here or at the leader: the answer is the operation's `report`, the
        steps if it was only planned, the `features` after they were raised.

        Raises `ProblemError`, `Unavailable`, `OutcomeUnknown`.
        """
        return await self._administration.perform(request)

    def recorded(self) -> Sequence[Operation]:
        """The operations that this node knows of, the newest last."""
        return list(self._group.state.operations.records.values())

    def features(self) -> dict[str, Any]:
        """As `Administration.features`."""
        return self._administration.features()

    # -- at the leader ------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled. Raises `StorageError`."""
        view = self._group.view
        while True:
            term = await view.wait_to_lead()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._raise_features)
                nursery.start_soon(self._drive)
                await view.wait_for_end_of(term)
                nursery.cancel_scope.cancel()

    async def _raise_features(self) -> None:
        """Raise the feature level in a new cluster once all members have been met."""
        while True:
            try:
                if await self._administration.raise_new_features():
                    return
            except (Unavailable, OutcomeUnknown, ProblemError) as error:
                log.info("the features could not be raised yet", why=str(error))
            await trio.sleep(_RAISE_S)

    async def _drive(self) -> None:
        # A record that an earlier leader proposed may be in the log and not be applied yet.
        group = self._group
        while group.state.header.applied_term != group.view.term:
            await group.view.turn_taken.park()
        await self._driver.run()

    async def _operate(self, request: ForOperations) -> dict[str, Any]:
        """Carry out a request as the leader. Raises as `perform`."""
        if self._group.state.header.features < OPERATIONS_FORMAT:
            raise Problem.FEATURES_NOT_RAISED.error(
                "operations need a feature level that this cluster does not have yet: run this "
                "release on every member, then `streamd cluster features --raise`"
            )
        if isinstance(request, Begin):
            return await self._begin(request)
        return report(await self._change(request))

    async def _begin(self, request: Begin) -> dict[str, Any]:
        operations = self._group.state.operations
        view = await self._view(request.arguments)
        try:
            steps = plan(request.kind, request.arguments, view)
        except Refused as error:
            raise Problem.OPERATION_REFUSED.error(str(error)) from error
        if request.dry_run:
            return {"steps": [planned(step) for step in steps]}
        begun = changes.begin(
            operations.last_id + 1,
            request.kind,
            request.arguments,
            steps,
            by=request.by,
            now_ms=view.now_ms,
        )
        outcome = await self._group.writes.propose(RecordOperation(begun))
        if outcome.result is Result.INVALID:
            raise Problem.OPERATION_REFUSED.error("an argument is too long")
        if outcome.result is not Result.DONE:
            raise Problem.OPERATION_IN_PROGRESS.error()
        log.info(
            "an operation begins",
            operation=begun.operation_id,
            kind=begun.kind,
            by=begun.requested_by,
        )
        self._driver.look_now()
        return report(begun)

    async def _view(self, arguments: Arguments) -> View:
        newcomers = await self._around.meet(arguments.addresses)
        return replace(await self._around.view(), newcomers=newcomers)

    async def _change(self, request: Pause | Resume | Cancel | Confirm) -> Operation:
        for _ in range(_TRIES):
            known = self._group.state.operations.records.get(request.operation_id)
            if known is None:
                raise Problem.OPERATION_NOT_FOUND.error()
            if known.has_ended:
                raise Problem.OPERATION_ENDED.error(
                    f"operation {known.operation_id}: {known.state}"
                )
            changed = _changed(known, request, self._around.now_ms())
            if await self._around.record(changed):
                self._driver.look_now()
                return changed
        raise Unavailable("the record of the operation changes all the time; try again")


def _changed(
    operation: Operation, request: Pause | Resume | Cancel | Confirm, now_ms: int
) -> Operation:
    """The record after an operator's request. Raises `ProblemError`."""
    try:
        match request:
            case Pause(by=by):
                return changes.paused(operation, by, now_ms)
            case Resume():
                return changes.resumed(operation, now_ms)
            case Cancel(by=by):
                return changes.cancelled(operation, by, now_ms)
    except Refused as error:
        raise Problem.OPERATION_REFUSED.error(str(error)) from error
    try:
        return changes.confirmed(operation, now_ms)
    except Refused as error:
        raise Problem.NOT_WAITING.error(str(error)) from error
