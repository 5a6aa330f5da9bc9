"""The keys with which nodes sign heads of the log, and how they come to be known.

Each node with a cold store has a key of its own, which never leaves it. The first leader adds its
key to the state: it is the one that people trust. From then on a key that is known vouches for each
further one. The leader does so for members that it asks for theirs, and a leader whose own key is
not known yet asks the others for that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property

import structlog
import trio

from streamd.group.group import Group
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.process.threads import RunBlocking
from streamd.proofs.heads import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    is_signed_by,
    key_of,
    key_text,
    public_key_of,
    sign,
    signed,
)
from streamd.storage.data_dir import DataDir
from streamd.streams.commands import AddLogKey, Result
from streamd.streams.log_keys import MAX_LOG_KEYS, LogKey
from streamd.tiering.tier import LeaderTerm

log = structlog.get_logger("streamd.objectstore")

# How long a leader waits for members that could vouch for its key and do not answer.
PATIENCE_S = 60.0
# How often to look for keys that are not known, and to ask members that did not answer.
_ROUND_S = 2.0

# Asks a member; an empty payload is the question for its key, a key the request to vouch for it.
AskMember = Callable[[int, bytes], Awaitable[bytes]]


class TooManyKeys(Exception):
    """The cluster has had as many keys as it may have."""


class LogKeys:
    """A node's key, and those that all nodes know."""

    def __init__(
        self,
        group: Group,
        data_dir: DataDir,
        *,
        private_key: bytes,
        run_blocking: RunBlocking,
        new_key: Callable[[], bytes],
        may_have_tree: Callable[[], bool],
        ask_member: AskMember | None,
    ) -> None:
        """`private_key` is the one in the data directory. `new_key` makes another."""
        self._group = group
        self._data_dir = data_dir
        self._pair = _Pair(private_key)
        self._run_blocking = run_blocking
        self._new_key = new_key
        self._may_have_tree = may_have_tree
        self._ask_member = ask_member
        self._rotating = trio.Lock()
        self._lead: LeaderTerm | None = None
        self._answered: set[int] = set()
        self._has_told = False
        self._missed_since: float | None = None

    @property
    def known(self) -> tuple[LogKey, ...]:
        """The keys that all nodes know, in the order in which they were added."""
        return self._group.state.header.log_keys

    def chain(self) -> list[LogKey]:
        """The keys from one that has signed itself to this node's; none if that is not known."""
        by_key = {one.public_key: one for one in self.known}
        found = []
        at = by_key.get(self._pair.public)
        while at is not None:
            found.append(at)
            at = by_key.get(at.signed_by)
        return found[::-1]

    def signed(self, text: str) -> str:
        """The note with this node's signature."""
        return signed(text, self._pair.private, key_of(self._cluster_id, self._pair.public))

    @property
    def _cluster_id(self) -> str:
        return self._data_dir.identity.cluster_id

    @property
    def _is_known(self) -> bool:
        return any(one.public_key == self._pair.public for one in self.known)

    # -- the leader ---------------------------------------------------------------------------

    async def make_round(self, lead: LeaderTerm) -> float:
        """Add the keys of this node and of members if they are not known. Raises `Unavailable`,
        `OutcomeUnknown`."""
        if not self._may_have_tree() or self._are_all_used():
            return _ROUND_S
        if lead is not self._lead:
            self._lead, self._answered = lead, set()
        if not self._is_known:
            await self._add_own()
        if self._is_known:
            await self._add_those_of_members()
        return _ROUND_S

    def _are_all_used(self) -> bool:
        """Whether the cluster has had as many keys as it may have."""
        are_used = len(self.known) >= MAX_LOG_KEYS
        if are_used and not self._is_known and not self._has_told:
            log.error("the cluster has had as many keys as it may have: this node signs no heads")
            self._has_told = True
        return are_used

    async def _add_own(self) -> None:
        node_id, public_key = self._group.view.node_id, self._pair.public
        vouched = await self._vouched_for() if self.known else None
        if vouched is None:
            if self.known and self._others() and not self._has_waited():
                return
            signature = sign(key_text(self._cluster_id, public_key), self._pair.private)
            vouched = LogKey(node_id, public_key, b"", signature)
            if self.known:
                log.error(
                    "no member of the cluster could vouch for this node's key for heads of the "
                    "log: heads that it signs do not lead back to the cluster's first key",
                    key=public_key.hex(),
                )
        await self._add(vouched)
        self._missed_since = None

    def _others(self) -> list[int]:
        view = self._group.view
        return sorted(view.configuration.members() - {view.node_id})

    def _has_waited(self) -> bool:
        now = trio.current_time()
        self._missed_since = self._missed_since or now
        return now - self._missed_since >= PATIENCE_S

    async def _vouched_for(self) -> LogKey | None:
        """This node's key, with the signature of a member whose key is known."""
        node_id, public_key = self._group.view.node_id, self._pair.public
        for member in self._others():
            answer = await self._ask(member, public_key)
            key = LogKey(node_id, public_key, answer[:KEY_BYTES], answer[KEY_BYTES:])
            if any(one.public_key == key.signed_by for one in self.known) and self._is_right(key):
                return key
        return None

    async def _add_those_of_members(self) -> None:
        """Ask each member once in a term for its key, and vouch for those that are not known."""
        for member in self._others():
            if member in self._answered:
                continue
            public_key = await self._ask(member, b"")
            if len(public_key) != KEY_BYTES:
                continue
            if all(one.public_key != public_key for one in self.known):
                await self._add(self._vouch(member, public_key))
            self._answered.add(member)

    async def _ask(self, member: int, payload: bytes) -> bytes:
        """A member's answer; empty if it has none."""
        assert self._ask_member is not None, "a node by itself has no other members"
        try:
            return await self._ask_member(member, payload)
        except (Unavailable, OutcomeUnknown) as error:
            log.debug("a member does not answer about its key", member=member, error=str(error))
            return b""

    def _vouch(self, node_id: int, public_key: bytes) -> LogKey:
        signature = sign(key_text(self._cluster_id, public_key), self._pair.private)
        return LogKey(node_id, public_key, self._pair.public, signature)

    def _is_right(self, key: LogKey) -> bool:
        text = key_text(self._cluster_id, key.public_key)
        return len(key.signature) == SIGNATURE_BYTES and is_signed_by(
            text, key.signature, key.signed_by
        )

    async def _add(self, key: LogKey) -> Result:
        outcome = await self._group.writes.propose(AddLogKey(len(self.known), key))
        return outcome.result

    # -- every node ---------------------------------------------------------------------------

    def answer(self, payload: bytes) -> bytes:
        """This node's key, or its signature for that of a member, after the key that it is by.
        Raises `Unavailable`."""
        if not payload:
            return self._pair.public
        if len(payload) != KEY_BYTES:
            raise Unavailable(f"a key has {KEY_BYTES} bytes, not {len(payload)}")
        if not self._is_known:
            raise Unavailable("this node's own key is not known yet")
        key = self._vouch(0, payload)
        return key.signed_by + key.signature

    async def rotate(self) -> LogKey:
        """Replace this node's key by a new one, for which the present one vouches.

        Raises `TooManyKeys`; `Unavailable` if that is not possible now; `OutcomeUnknown`: then the
        present key remains.
        """
        async with self._rotating:
            if not self._is_known:
                raise Unavailable("this node's key for heads of the log is not known yet")
            private_key = self._new_key()
            key = self._vouch(self._group.view.node_id, public_key_of(private_key))
            result = await self._add(key)
            if result is Result.TOO_MANY_LOG_KEYS:
                raise TooManyKeys
            if result is not Result.DONE:
                raise Unavailable("another key was added at the same time")
            await self._run_blocking(self._data_dir.write_log_key, private_key)
            self._pair = _Pair(private_key)
            return key


class _Pair:
    def __init__(self, private_key: bytes) -> None:
        self.private = private_key

    @cached_property
    def public(self) -> bytes:
        return public_key_of(self.private)
