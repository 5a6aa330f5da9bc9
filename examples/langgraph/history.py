"""A thread's checkpoints, as its stream tells them.

    {"ns": "", "checkpoint": "1f0c", "parent": null, "state": …, "metadata": …,
     "values": [["events", 2, …]]}
    {"ns": "", "checkpoint": "1f0c", "task": "9b1d", "path": "act", "writes": [[0, "events", …]]}

`…` is what LangGraph's serializer makes of a value: its kind, and bytes as base64. A checkpoint has
only the values that are new with it; the others are those of the same version before.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

Record: TypeAlias = dict[str, Any]
Typed: TypeAlias = tuple[str, bytes]


class Write(NamedTuple):
    """What a task of a checkpoint has written, before the next checkpoint has it."""

    path: str
    task: str
    number: int
    channel: str
    value: Typed


class History:
    """What the records of a thread's stream amount to."""

    def __init__(self, records: Iterable[Record]) -> None:
        # By namespace and id.
        self.checkpoints: dict[tuple[str, str], Record] = {}
        self._writes: defaultdict[tuple[str, str], dict[tuple[str, int], Write]]
        self._writes = defaultdict(dict)
        self._values: dict[tuple[str, str, Any], Typed] = {}
        for record in records:
            if "writes" in record:
                self._add_writes(record)
            elif "state" in record:
                self._add_checkpoint(record)

    def latest(self, namespace: str) -> str | None:
        """The id of the namespace's last checkpoint: ids grow with time."""
        return max((one for ns, one in self.checkpoints if ns == namespace), default=None)

    def writes(self, namespace: str, checkpoint: str) -> list[Write]:
        """The writes of a checkpoint's tasks, in the order in which a run applies them."""
        return sorted(self._writes[namespace, checkpoint].values(), key=lambda write: write[:3])

    def values(self, namespace: str, versions: dict[str, Any]) -> dict[str, Typed]:
        """The values of the channels that have one at these versions."""
        found = {name: self._values.get((namespace, name, at)) for name, at in versions.items()}
        return {name: value for name, value in found.items() if value is not None}

    def _add_checkpoint(self, record: Record) -> None:
        namespace = record["ns"]
        self.checkpoints[namespace, record["checkpoint"]] = record
        for channel, version, value in record["values"]:
            self._values[namespace, channel, version] = decoded(value)

    def _add_writes(self, record: Record) -> None:
        known = self._writes[record["ns"], record["checkpoint"]]
        for number, channel, value in record["writes"]:
            # A task that was repeated has written the same before. The numbers of errors and
            # interrupts are negative, and their last one counts.
            if number < 0 or (record["task"], number) not in known:
                write = Write(record["path"], record["task"], number, channel, decoded(value))
                known[record["task"], number] = write


def encoded(value: Typed) -> list[str]:
    """A serialized value, for JSON."""
    return [value[0], b64encode(value[1]).decode()]


def decoded(value: list[str]) -> Typed:
    """A serialized value, from JSON."""
    return value[0], b64decode(value[1])
