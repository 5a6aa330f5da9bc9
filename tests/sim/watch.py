"""The watch of a simulation: what must hold at each moment of it.

The invariants are those of the Raft core's own simulations; here they look at real logs on
simulated disks, and at what the nodes answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any
from zlib import crc32

import msgspec

from streamd.node.node import Node
from streamd.objectstore.tree_frames import leaf_of
from streamd.proofs.tree import GrowingTree
from streamd.raft.core import Core, Role
from streamd.raft.messages import HardState, Message
from streamd.storage.log_storage import LogStorage
from streamd.streams.commands import Command, Outcome
from streamd.streams.model import Header
from streamd.streams.sessions import PackageStamp
from tests.raft.invariants import Checker, InvariantBroken

__all__ = ["InvariantBroken", "Watch"]

# The calls that change a core; everything is checked after each.
_EVENTS = (
    "step",
    "stored",
    "tick",
    "propose",
    "propose_configuration",
    "transfer",
    "ready",
    "restore",
)


class _Held:
    """What a node's disk holds, as its log knows it: nothing that was not synced."""

    def __init__(self) -> None:
        self.log: LogStorage | None = None

    @property
    def hard_state(self) -> HardState:
        return HardState() if self.log is None else self.log.hard_state

    @property
    def last_index(self) -> int:
        return 0 if self.log is None else self.log.last_index

    def holds(self, index: int, term: int) -> bool:
        """Including entries known to be lost: the node does not vote until they are back."""
        if self.log is None:
            return False
        lost = self.log.lost_below
        return (
            index < self.log.first_index - 1
            or (lost is not None and index <= lost.index)
            or self.log.holds(index, term)
        )


class _Trees:
    """The trees over the log, of entries as nodes apply them."""

    def __init__(self) -> None:
        self._leaves: dict[int, bytes] = {}
        # By the first entry; each grows with the archive.
        self._grown: dict[int, GrowingTree] = {}

    def note(self, log: LogStorage, index: int) -> None:
        """An entry is about to be applied."""
        [entry] = log.entries(index, index + 1, 1 << 30)
        leaf = leaf_of(entry)
        if self._leaves.setdefault(index, leaf) != leaf:
            raise InvariantBroken(f"entry {index} has two leaves")

    def check(self, header: Header) -> bool:
        """Whether a state that has just taken an archive's end has a tree, which is then right.
        Raises `InvariantBroken`."""
        first, last = header.tree.first_index, header.archived.index
        if not first:
            return False
        tree = self._grown.setdefault(first, GrowingTree())
        if tree.size > header.tree.size_at(last):
            tree = GrowingTree()  # a node that lags, or applies entries again
        for index in range(first + tree.size, last + 1):
            tree.add(self._leaves[index])
        if tree.nodes != list(header.tree.nodes):
            raise InvariantBroken(f"the tree over entries {first} to {last} is another one")
        return True


class Watch:
    """Follows every node through all its lives."""

    def __init__(self, counted: Counter[str]) -> None:
        self._counted = counted
        self._disks: dict[int, _Held] = {}
        self._checker = Checker(self._disks)
        self._applied: Counter[int] = Counter()
        self._first_index: dict[int, int] = {}
        self._trees = _Trees()
        # Nodes that a configuration in the log removed.
        self.removed: set[int] = set()
        self._encoder = msgspec.msgpack.Encoder()

    @property
    def committed_index(self) -> int:
        """How far the cluster as a whole has committed."""
        return self._checker.committed_index

    def add_machine(self, node_id: int) -> None:
        self._disks[node_id] = _Held()

    def follow(self, node: Node, *, is_damaged: bool) -> None:
        """Check a new node after each of its events.

        Raises `InvariantBroken` when it misses entries though its disk was never damaged.
        """
        core = node.group._core
        if not core.may_vote and not is_damaged:
            raise InvariantBroken(f"node {core.node_id} has lost entries on a disk that is whole")
        self._disks[core.node_id].log = node.stores.log
        self._checker.after_store(core.node_id)
        self._checker.after_restart(core, core.applied_index)
        self._counted["starts without all entries"] += not core.may_vote
        for event in _EVENTS:
            setattr(core, event, self._checked(core, getattr(core, event)))
        machine = node.group.machine
        machine.configure = self._noted(machine.configure)  # type: ignore[method-assign]
        machine.apply = self._compared(node, machine.apply)  # type: ignore[method-assign]
        assert node.cluster is not None
        node.cluster.send = self._vouched(node.cluster.send)  # type: ignore[method-assign]
        self._check(core)

    def after_write(self, node_id: int) -> None:
        """A node's log was written."""
        self._checker.after_store(node_id)

    def _check(self, core: Core) -> None:
        """But not while a Raft snapshot has replaced the log and the core does not know yet."""
        is_replaced = core.first_index - 1 > core.commit_index
        if core._state.restoring is None or not is_replaced:
            self._checker.after_event(core)

    def _checked(self, core: Core, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def checked(*args: Any, **options: Any) -> Any:
            role, trusted = core.role, core.may_vote
            result = call(*args, **options)
            self._check(core)
            self._counted["elections"] += role != Role.LEADER and core.role == Role.LEADER
            self._counted["leaders deposed"] += role == Role.LEADER and core.role != Role.LEADER
            before = self._first_index.get(core.node_id, core.first_index)
            self._counted["log compactions"] += core.first_index > before
            self._first_index[core.node_id] = core.first_index
            self._counted["entries regained"] += core.may_vote and not trusted
            return result

        return checked

    def _noted(self, configure: Callable[..., None]) -> Callable[..., None]:
        def noted(index: int, term: int, configuration: bytes, gone: Iterable[int]) -> None:
            self.removed |= set(gone)
            configure(index, term, configuration, gone)

        return noted

    def _compared(self, node: Node, apply: Callable[..., list[Outcome]]) -> Callable[..., Any]:
        """Applied anywhere, and again after a restart, an entry has the same outcomes; and the tree
        over the log is that of the entries that were applied."""
        core, state = node.group._core, node.group.state

        def compared(
            index: int,
            term: int,
            now_ms: int,
            commands: list[Command],
            packages: Sequence[PackageStamp] = (),
        ) -> Sequence[Outcome]:
            digest = crc32(self._encoder.encode((term, now_ms, commands, packages)))
            self._trees.note(node.stores.log, index)
            archived = state.header.archived
            outcomes = apply(index, term, now_ms, commands, packages)
            if state.header.archived != archived:
                self._counted["trees compared"] += self._trees.check(state.header)
            digest = crc32(self._encoder.encode(outcomes), digest)
            self._checker.after_apply(core.node_id, index, digest)
            if index <= self._applied[core.node_id]:
                self._counted["entries replayed"] += 1
            self._applied[core.node_id] = index
            return outcomes

        return compared

    def _vouched(self, send: Callable[[Sequence[Message]], None]) -> Callable[..., None]:
        def vouched(messages: Sequence[Message]) -> None:
            for message in messages:
                self._checker.before_send(message)
            send(messages)

        return vouched
