"""The record of an operation on a cluster, in a command and in a row (docs/formats.md)."""

from __future__ import annotations

from typing import Literal

import msgspec

OperationKind = Literal[
    "rolling-restart", "replace-node", "scale-up", "scale-down", "upgrade", "drain",
    "restart-recovery", "bootstrap",
]  # fmt: skip
OperationState = Literal[
    "running", "paused", "waiting_for_operator", "done", "failed", "cancelled",
]  # fmt: skip
Deed = Literal[
    "transfer-leadership", "restart", "add", "catch-up", "promote", "remove", "stop", "install",
    "raise-features",
]  # fmt: skip


class Arguments(msgspec.Struct, array_like=True, frozen=True):
    """What an operator asked for."""

    node_id: int = 0
    addresses: tuple[str, ...] = ()
    release: str = ""
    window_ms: int = 10_000


class Step(msgspec.Struct, array_like=True, frozen=True):
    """What is done to a node."""

    deed: Deed
    node_id: int = 0
    address: str = ""
    replacing: int = 0
    release: str = ""


class StepRecord(msgspec.Struct, array_like=True, frozen=True):
    """A step, and what became of it."""

    step: Step
    attempts: int = 0
    begun_at_ms: int = 0
    attempted_at_ms: int = 0
    incarnation: int = 0
    confirmed: bool = False
    ended_at_ms: int = 0
    note: str = ""
    asks: bool = False


class Operation(msgspec.Struct, array_like=True, frozen=True):
    """The record of an operation, in a command and in a row."""

    operation_id: int
    version: int
    kind: OperationKind
    arguments: Arguments
    requested_by: str
    begun_at_ms: int
    steps: tuple[StepRecord, ...]
    state: OperationState = "running"
    current: int = 0
    why: str = ""
    changed_at_ms: int = 0
    ended_at_ms: int = 0
    cancel_asked: bool = False
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
