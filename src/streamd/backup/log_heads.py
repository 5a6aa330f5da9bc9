"""Signed heads of the tree over the log: of the state, in the store, and for clients."""

from __future__ import annotations

from base64 import b64encode

import msgspec
from msgspec.structs import astuple, replace

from streamd.backup.archived_objects import list_all
from streamd.backup.checkpoints import ArchiveTarget
from streamd.backup.log_keys import LogKeys
from streamd.backup.log_tree import StoredTree
from streamd.objectstore.names import HEADS, HeadName, digest_of, group_folder
from streamd.proofs.published import PublishedHead, PublishedKey, head_of, published_key
from streamd.streams.log_keys import LogKey
from streamd.streams.model import LogPosition, LogTree

# At most twice this many heads are in the store, as many as pointers to the archive's end.
_KEPT = 8


class LogHeads:
    """One group's heads, as this node signs them."""

    def __init__(self, target: ArchiveTarget, keys: LogKeys) -> None:
        self._target = target
        self.keys = keys
        self._stored: StoredTree | None = None
        self._put_index = 0
        self._puts = 0

    @property
    def cluster_id(self) -> str:
        return self._target.cluster_id()

    @property
    def archived_index(self) -> int:
        """The last entry in the tree of `newest`."""
        return self._target.group.state.header.archived.index

    def now_ms(self) -> int:
        """The time of day, in milliseconds since the epoch."""
        return self._target.group.now_ms()

    def newest(self) -> PublishedHead | None:
        """The head of the archived log, signed by this node; None while the log has no tree, or
        this node's key is not known to the cluster."""
        header = self._target.group.state.header
        chain = self.keys.chain()
        if not header.tree.first_index or not chain:
            return None
        return self._signed(header.tree, header.archived)

    def _signed(self, tree: LogTree, archived: LogPosition) -> PublishedHead:
        cluster_id = self._target.cluster_id()
        last = archived.index, archived.time_ms
        head = head_of(cluster_id, self._target.group_id, tree.first_index, tree.nodes, last)
        keys = [self.published(one) for one in self.keys.chain()]
        return PublishedHead(self.keys.signed(head.text), keys)

    def published(self, key: LogKey) -> PublishedKey:
        """A key in the form in which readers get it."""
        return published_key(self._target.cluster_id(), *astuple(key))

    async def since(self, size: int) -> PublishedHead | None:
        """As `newest`, with the proof that its tree begins with that of its first `size` leaves.

        Raises `ValueError` if it has fewer, or `size` is 0; `ColdError`.
        """
        header = self._target.group.state.header
        tree, archived, head = header.tree, header.archived, self.newest()
        if head is None:
            return None
        path = await self._tree().consistency(size, tree, archived.index)
        return replace(head, consistency=[b64encode(one).decode() for one in path])

    async def with_entry(self, index: int) -> tuple[PublishedHead, list[bytes]] | None:
        """As `newest`, with the path from an entry of its log to its root; None if its tree does
        not have the entry. Raises `ColdError`."""
        header = self._target.group.state.header
        tree, archived, head = header.tree, header.archived, self.newest()
        if head is None or not tree.first_index <= index <= archived.index:
            return None
        return head, await self._tree().inclusion(index, tree, archived.index)

    def _tree(self) -> StoredTree:
        if self._stored is None:
            self._stored = StoredTree(self._target.objects, self._target.run_blocking)
        return self._stored

    async def make_round(self) -> None:
        """Put the newest head into the store if it is not there yet. Runs on the leader, after the
        archive. Raises `ColdError`, `Unavailable`."""
        target = self._target
        index = self.archived_index
        head = self.newest() if index != self._put_index else None
        if head is None:
            return
        content = msgspec.json.encode(head)
        name = HeadName(target.group_id, index, digest_of(content))
        await target.cold.put(f"{target.folder}{name}", content)
        self._put_index = index
        self._puts += 1
        if self._puts % _KEPT == 1:
            await self._remove_old()

    async def _remove_old(self) -> None:
        """Remove all but the newest heads."""
        target = self._target
        folder = target.folder + group_folder(HEADS, target.group_id)
        listed = [info.name for info in await list_all(target.cold, folder)]
        names = [name.removeprefix(target.folder) for name in listed]
        await target.delete([name for name in names if HeadName.parse(name)][:-_KEPT])
