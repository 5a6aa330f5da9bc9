"""What an operator asks of operations, as any node passes it on to the leader in JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec

from streamd.streams.operations.model import Arguments, Kind

OperationId = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Begin(msgspec.Struct, frozen=True, tag="begin-operation"):
    """Begin an operation; with `dry_run` only answer its steps."""

    kind: Kind
    arguments: Arguments = Arguments()
    by: str = ""
    dry_run: bool = False


class Pause(msgspec.Struct, frozen=True, tag="pause-operation"):
    """Begin no further attempt until it is resumed."""

    operation_id: OperationId
    by: str = ""


class Resume(msgspec.Struct, frozen=True, tag="resume-operation"):
    """Carry on after a pause."""

    operation_id: OperationId
    by: str = ""


class Cancel(msgspec.Struct, frozen=True, tag="cancel-operation"):
    """End the operation once the step in progress has come to its end."""

    operation_id: OperationId
    by: str = ""


class Confirm(msgspec.Struct, frozen=True, tag="confirm-operation"):
    """The operator has done what the operation waits for."""

    operation_id: OperationId
    by: str = ""


class RaiseFeatures(msgspec.Struct, frozen=True, tag="raise-features"):
    """Raise the feature level to the highest that every member understands."""

    by: str = ""


OperationRequest = Begin | Pause | Resume | Cancel | Confirm | RaiseFeatures
