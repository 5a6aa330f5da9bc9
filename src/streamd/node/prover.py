"""Makes proofs of records: files that show a record's command in the log, under a signed head.

A stream's records are found where they were appended: those that a fork inherits, in the source's
commands. The log is searched in the object store, so one proof is made at a time.
"""

from __future__ import annotations

from copy import copy

import trio

from streamd.backup.archive import Archive
from streamd.backup.record_search import RecordSearch, SoughtRecord, Unprovable
from streamd.node.reads import Reads
from streamd.objectstore.errors import ObjectCorrupt
from streamd.proofs.heads import parse_head
from streamd.proofs.leaves import entry_hash
from streamd.proofs.published import PublishedHead
from streamd.proofs.record_proofs import Claim, FoundEntry, prove
from streamd.proofs.tree import root_above
from streamd.protocol.problems import Problem
from streamd.raft.messages import EntryKind
from streamd.streams.chunks import Window
from streamd.streams.model import Stream
from streamd.streams.offsets import Position
from streamd.streams.queries.reading import home

# How long the log is searched.
SEARCH_S = 60.0
# How many forks of forks are followed to the stream that appended a record.
_MAX_FORKS = 1000


class Prover:
    """Makes one proof at a time."""

    def __init__(self, archive: Archive, reads: Reads) -> None:
        self._target = archive.target
        self._heads = archive.heads
        self._reads = reads
        self._one_at_a_time = trio.Lock()

    async def prove(self, key: bytes, stream: Stream, at: Position) -> bytes:
        """The proof, as a file, of the first record that `stream` has at an offset or after it.

        Raises `ProblemError`, `Unprovable`, a `ColdError`, and as `Reads.read`.
        """
        try:
            self._one_at_a_time.acquire_nowait()
        except trio.WouldBlock:
            raise Problem.PROOF_IN_PROGRESS.error() from None
        try:
            with trio.move_on_after(SEARCH_S):
                return await self._prove(key, stream, at)
            raise Problem.PROOF_TIMEOUT.error()
        finally:
            self._one_at_a_time.release()

    async def _prove(self, key: bytes, stream: Stream, at: Position) -> bytes:
        target = self._target
        header = target.group.state.header
        archived = header.archived
        if self._heads.newest() is None:
            raise Problem.NO_LOG_HEAD.error()
        sought, readable = await self._sought(key, copy(stream), at)
        search = RecordSearch(
            target.objects,
            sought,
            archived.index,
            incarnation_base=header.incarnation_base,
            run_blocking=target.run_blocking,
        )
        found = await search.find()
        if found is None:
            # Its entry has the log time of the stream's last write at the latest.
            if archived.time_ms <= sought.stream.last_write_ms:
                raise Problem.NOT_ARCHIVED.error()
            raise Unprovable("no archived command appends the record")
        # A proof holds the whole command. Of a fork, or a stream that was trimmed, not all of it
        # may be readable: the fork's reader may not be one of its source.
        first = sought.at.record - found.command.record
        if first < readable.start or first + found.command.records > readable.stop:
            raise Unprovable("its append has records that cannot be read in this stream")
        proved = await self._heads.with_entry(found.entry.index)
        if proved is None:
            raise Unprovable(f"entry {found.entry.index} is older than the log's tree")
        head, path = proved
        await target.run_blocking(_check, found.entry, path, head)
        bucket, _, name = sought.key.decode().partition("\0")
        claim = Claim(f"{bucket}/{name}", sought.at.token().decode(), found.command.record)
        return await target.run_blocking(
            prove, claim, found.entry, found.command.number, path, head
        )

    async def _sought(self, key: bytes, stream: Stream, at: Position) -> tuple[SoughtRecord, range]:
        """The first record from an offset on, as the stream that appended it has it, and which
        records of that one `stream` has."""
        read = await self._reads.read(stream, Window(at, 1))
        if not read.size:
            raise Problem.NO_RECORD.error()
        lengths = read.lengths()
        begin = Position(read.end.record - len(lengths), read.end.byte - read.size)
        data = b"".join(read.parts)[: lengths[0]]
        stream_id, end = home(stream, begin.record)
        readable = range(stream.earliest.record, end.record)
        for _ in range(_MAX_FORKS):
            if stream.stream_id == stream_id:
                return SoughtRecord(key, stream, begin, data), readable
            fork = stream.settings.fork
            source = None if fork is None else await self._reads.stream(fork.source)
            if fork is None or source is None:
                break
            key, stream = fork.source, copy(source)
        raise Unprovable("the stream that appended the record is gone, and its fork remains")


def _check(entry: FoundEntry, path: list[bytes], published: PublishedHead) -> None:
    """Raises `ObjectCorrupt` for a path to another root than that of the head: what was read from
    the store is not what was archived."""
    head = parse_head(published.note.rpartition("\n\n")[0] + "\n")
    payload, kind = entry.payload, EntryKind.COMMANDS
    leaf = entry_hash(entry.index, entry.term, kind, payload, has_commands=True)
    if root_above(leaf, entry.index - head.first_index, head.size, path) != head.root:
        raise ObjectCorrupt("the archived log is not the one whose tree the cluster has made")
