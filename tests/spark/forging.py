"""A cluster's folder taken apart, changed, and reassembled with every checksum right.

It uses the server's own writers, to make what the server could have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import zstandard
from crc32c import crc32c
from msgspec.structs import astuple, replace

from streamd.objectstore import segments
from streamd.objectstore.checkpoints import (
    CheckpointOf,
    CheckpointWriter,
    Manifest,
    read_manifest,
    read_piece,
)
from streamd.objectstore.ends import make_end, read_end
from streamd.objectstore.errors import ColdError
from streamd.objectstore.names import (
    EndName,
    ManifestName,
    NamedObject,
    PackName,
    PieceName,
    SegmentName,
    check_digest,
    digest_of,
)
from streamd.objectstore.packs import Pack as WrittenPack
from streamd.objectstore.packs import PackWriter, read_pack
from streamd.objectstore.segments import (
    SegmentWriter,
    frames_bytes,
    read_entries,
    read_segment_head,
    tree_of_segment,
)
from streamd.raft.messages import Entry, EntryKind
from streamd.storage.raft_snapshots import whole_rows
from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.codec import Batch, decode_batch, encode_batch
from streamd.streams.commands import Archived, Command, FlushCold, NewSlice
from streamd.streams.model import (
    ColdSlice,
    Header,
    LogPosition,
    LogTree,
    Pack,
    SliceRef,
    Stream,
)
from tests.support.packs import chunks_of

Rows = dict[bytes, bytes]


class Said(NamedTuple):
    """A command of the log: the `position`-th of entry `index`."""

    index: int  # type: ignore[assignment]  # of NamedTuple
    position: int
    command: Any


class Slice(NamedTuple):
    """A slice that the newest state refers to; `pack` is the full name of its object."""

    stream_id: int
    end_record: int
    row: ColdSlice
    pack: str


class Folder:
    """The objects of one group of a cluster, by their names below the store's prefix."""

    def __init__(self, objects: Mapping[str, bytes], cluster_id: str, group_id: int = 0) -> None:
        self.objects = {
            name: content for name, content in objects.items() if name.startswith(cluster_id)
        }
        self.cluster_id = cluster_id
        self.group_id = group_id
        self._at = f"{cluster_id}/"

    def names(self, kind: str) -> list[str]:
        """The full names of all objects of a kind, in order."""
        return sorted(name for name in self.objects if name.startswith(f"{self._at}{kind}/"))

    def local(self, name: str) -> str:
        return name.removeprefix(self._at)

    def put(self, name: str, content: bytes) -> str:
        """Put an object under its name in the folder; returns the full one."""
        self.objects[self._at + name] = content
        return self._at + name

    def replace(self, old: str, name: str, content: bytes) -> str:
        del self.objects[old]
        return self.put(name, content)

    # -- the log ------------------------------------------------------------------------------

    def segments(self) -> list[str]:
        return self.names("log")

    def entries(self, name: str) -> list[Entry]:
        return [entry for entry, _ in read_entries(self.objects[name])]

    def log(self) -> list[Entry]:
        return [entry for name in self.segments() for entry in self.entries(name)]

    def commands(self) -> Iterator[Said]:
        for entry in self.log():
            if entry.kind == EntryKind.COMMANDS:
                for position, command in enumerate(decode_batch(entry.payload).commands):
                    yield Said(entry.index, position, command)

    def find(self, accept: Callable[[Any], bool]) -> list[Said]:
        return [said for said in self.commands() if accept(said.command)]

    def segment_of(self, index: int) -> str:
        """The full name of the segment that holds an entry."""
        for name in self.segments():
            parsed = SegmentName.parse(self.local(name))
            assert parsed is not None
            if parsed.first_index <= index <= parsed.last_index:
                return name
        raise AssertionError(f"no segment holds entry {index}")

    def forge_log(self, changes: Mapping[int, Entry]) -> None:
        """Replace some entries, and recompute everything that depends on the chain and the tree:
        segments, `Archived` commands, pointers to the end, manifests and states. Heads are removed,
        as nobody but the nodes can sign them."""
        places = Places(self.group_id)
        places.at |= self.named_places()
        for name in self.segments():
            made = places.write(self, name, lambda entry: changes.get(entry.index, entry))
            self.replace(name, made.name, made.content)
        for name in self.names("heads") if changes else ():
            del self.objects[name]
        for name in self.names("ends"):
            end = read_end(self.objects[name])
            made = make_end(replace(end, position=places.at[end.position.index]))
            self.replace(name, made.name, made.content)
        for name in self.names("snapshots"):
            self._forge_state(name, lambda of, rows: move_state(of, rows, places))

    def named_places(self) -> dict[int, LogPosition]:
        """The places that objects name; forging leaves those before the log's first entry."""
        heads = (read_segment_head(self.objects[name]) for name in self.segments())
        named = [LogPosition(), *(head.previous for head in heads)]
        named += (read_end(self.objects[name]).position for name in self.names("ends"))
        for name in self.manifests():
            header = msgspec.msgpack.decode(self.rows(name)[keys.HEADER], type=Header)
            named += self.manifest(name).of.position, header.archived
        return {place.index: place for place in named}

    def forge_command(self, index: int, position: int, command: Command) -> None:
        """Replace a command, as `forge_log` does."""
        entry = next(one for one in self.log() if one.index == index)
        batch = decode_batch(entry.payload)
        commands = [*batch.commands]
        commands[position] = command
        payload = encode_batch(replace(batch, commands=commands))
        self.forge_log({index: replace(entry, payload=payload)})

    # -- packs --------------------------------------------------------------------------------

    def packs(self) -> list[str]:
        return self.names("packs")

    def chunks(self, name: str) -> list[tuple[int, Chunk]]:
        """The stream id and chunk of each slice of a pack."""
        return [(ref.stream_id, chunk) for ref, chunk in chunks_of(self.objects[name])]

    def pack_of(self, name: str, slices: list[tuple[int, Chunk]]) -> WrittenPack:
        """A pack of the same place, of other slices."""
        parsed = PackName.parse(self.local(name))
        assert parsed is not None
        writer = PackWriter(parsed.group_id, parsed.term, parsed.number)
        for stream_id, chunk in slices:
            writer.add(stream_id, chunk)
        return writer.finish()

    def forge_pack(
        self, name: str, slices: list[tuple[int, Chunk]], content: bytes | None = None
    ) -> str:
        """Replace a pack by one of other slices, as many, or by such a `content`, under the name it
        then has, and let the log and the states refer to that. Returns its full name."""
        made = self.pack_of(name, slices)
        if content is not None:
            local = made.name.replace(digest_of(made.content), digest_of(content))
            made = made._replace(name=local, content=content)
        new = self.replace(name, made.name, made.content)
        [said] = self.find(lambda c: isinstance(c, FlushCold) and c.name == name)
        refs = [
            NewSlice.of(old.owner, ref)
            for old, ref in zip(said.command.slices, made.slices, strict=True)
        ]
        flush = replace(said.command, name=new, size=len(made.content), slices=refs)
        self.forge_command(said.index, said.position, flush)
        for manifest in self.names("snapshots"):
            self._forge_state(
                manifest, lambda of, rows: _refer_to_pack(of, rows, name, flush, made.slices)
            )
        return new

    # -- states -------------------------------------------------------------------------------

    def manifests(self) -> list[str]:
        return self.names("snapshots")

    def manifest(self, name: str) -> Manifest:
        return read_manifest(self.objects[name])

    def pieces(self, manifest: str) -> list[str]:
        """The full names of the pieces that a manifest names."""
        found = self.manifest(manifest)
        return [self._at + found.piece_name(number) for number in range(len(found.pieces))]

    def rows(self, manifest: str) -> Rows:
        found = self.manifest(manifest)
        data = b"".join(
            read_piece(found, number, self.objects[name])
            for number, name in enumerate(self.pieces(manifest))
        )
        return {key: value for key, value, _ in whole_rows(data)}

    def state(self) -> Rows:
        """The rows of the newest state."""
        return self.rows(self.manifests()[-1])

    def forge_state(self, edit: Callable[[Rows], None], number: int = -1) -> str:
        """Edit the rows of a state, all checksums recomputed. Returns its manifest."""
        return self._edit_state(self.manifests()[number], edit)

    def index_of(self, number: int) -> int:
        return self.manifest(self.manifests()[number]).of.index

    def forge_states(self, edit: Callable[[Rows], None]) -> None:
        """Edit the rows of all states, all checksums recomputed."""
        for name in self.manifests():
            self._edit_state(name, edit)

    def _edit_state(self, name: str, edit: Callable[[Rows], None]) -> str:
        def change(of: CheckpointOf, rows: Rows) -> CheckpointOf:
            edit(rows)
            return of

        return self._forge_state(name, change)

    def _forge_state(self, name: str, edit: Callable[[CheckpointOf, Rows], CheckpointOf]) -> str:
        manifest, rows, pieces = self.manifest(name), self.rows(name), self.pieces(name)
        of = edit(manifest.of, rows)
        for piece in pieces:
            del self.objects[piece]
        del self.objects[name]
        return put_state(self, of, rows)

    # -- finding things in the newest state ------------------------------------------------------

    def stream(self, name: str) -> Stream:
        """A stream ``BUCKET/NAME`` of the newest state."""
        return msgspec.msgpack.decode(self.state()[stream_row(name)], type=Stream)

    def header(self) -> Header:
        return msgspec.msgpack.decode(self.state()[keys.HEADER], type=Header)

    def slices(self, stream_id: int) -> list[Slice]:
        rows = self.state()
        start, stop = keys.id_range(keys.SLICE, stream_id)
        found = []
        for key, value in sorted(rows.items()):
            if start <= key < stop:
                row = msgspec.msgpack.decode(value, type=ColdSlice)
                pack = msgspec.msgpack.decode(rows[keys.pack_key(row.term, row.number)], type=Pack)
                found.append(Slice(stream_id, keys.parse_number(key), row, pack.name))
        return found


def stream_row(name: str) -> bytes:
    bucket, _, rest = name.partition("/")
    return keys.STREAM + keys.stream_key(bucket.encode(), rest.encode())


def edit_row(rows: Rows, key: bytes, kind: type[Any], **fields: object) -> None:
    """Change fields of a state's row."""
    found = msgspec.msgpack.decode(rows[key], type=kind)
    for name, value in fields.items():
        assert hasattr(found, name)
        msgspec.structs.force_setattr(found, name, value)
    rows[key] = msgspec.msgpack.encode(found)


def count(rows: Rows, **changes: int) -> None:
    """Add to the totals in a state's header."""
    header = msgspec.msgpack.decode(rows[keys.HEADER], type=Header)
    edit_row(
        rows,
        keys.HEADER,
        Header,
        **{name: getattr(header, name) + change for name, change in changes.items()},
    )


def with_bytes(chunk: Chunk, data: bytes) -> Chunk:
    assert len(data) == chunk.size
    return Chunk(chunk.start_record, chunk.start_byte, chunk.lengths, chunk.appends, data)


def flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 0x20
    return bytes(changed)


def raw_segment(
    folder: Folder,
    name: str,
    entries: list[Entry],
    *,
    chains: list[int] | None = None,
    last_index: int | None = None,
) -> bytes:
    """The content of a segment in the place of another, whose sizes and CRC-32C hold, whatever its
    entries are. `chains` are the values stored with them: by default those that the segment has."""
    head = read_segment_head(folder.objects[name])
    stored = chains or [place.chain for _, place in read_entries(folder.objects[name])]
    parts = []
    for entry, link in zip(entries, stored, strict=False):
        parts.append(segments._ENTRY.pack(entry.term, entry.kind, link, len(entry.payload)))
        parts.append(entry.payload)
    inside = b"".join(parts)
    original = folder.objects[name]
    skipped = original[
        -(frames_bytes(original) or len(segments._cluster_frame(folder.cluster_id))) :
    ]
    body = zstandard.ZstdCompressor(level=3).compress(inside) + skipped
    last = replace(head.last, chain=stored[-1], index=last_index or head.last.index)
    packed = segments._HEAD.pack(
        head.group_id,
        *astuple(head.previous),
        head.first_term,
        head.first_time_ms,
        *astuple(last),
        len(inside),
        len(body),
        crc32c(body),
    )
    return packed + body


def named_segment(folder: Folder, like: str, content: bytes) -> str:
    """The name, in the folder, of a segment with the indexes of another, and its own digest."""
    parsed = SegmentName.parse(folder.local(like))
    assert parsed is not None
    return str(replace(parsed, digest=digest_of(content)))


def flaw(folder: Folder) -> str | None:
    """The first fault that the server's own decoders find in any object; None if all are whole."""
    for name, content in sorted(folder.objects.items()):
        local = folder.local(name)
        try:
            if _parses(local):
                check_digest(local, content)
            if PackName.parse(local):
                read_pack(content)
                list(chunks_of(content))
            elif SegmentName.parse(local):
                list(read_entries(content))
            elif ManifestName.parse(local):
                read_manifest(content)
            elif EndName.parse(local):
                read_end(content)
        except ColdError as error:
            return f"{local}: {error}"
    try:
        for name in folder.manifests():
            folder.rows(name)
    except (ColdError, KeyError) as error:
        return f"{folder.local(name)}: {error}"
    return None


def _parses(local: str) -> bool:
    kinds = (PackName, SegmentName, PieceName, ManifestName, EndName)
    return any(kind.parse(local) for kind in kinds)


class Places:
    """Where the entries of a log are that is written again, and the trees over it."""

    def __init__(self, group_id: int) -> None:
        self.at = {0: LogPosition()}
        self.trees: dict[int, LogTree] = {}
        self._group_id = group_id

    def write(self, folder: Folder, name: str, change: Callable[[Entry], Entry]) -> NamedObject:
        """The segment of that name with changed entries, which follow those written before."""
        content = folder.objects[name]
        before = self.at[read_segment_head(content).previous.index]
        frame = tree_of_segment(content)
        tree = None if frame is None else self.trees.get(before.index, frame.tree)
        writer = SegmentWriter(self._group_id, before, folder.cluster_id, tree)
        for original in folder.entries(name):
            writer.add(self.repointed(change(original)))
            self.at[original.index] = writer.last
            if writer.tree is not None:
                self.trees[original.index] = writer.tree
        return writer.finish()

    def repointed(self, entry: Entry) -> Entry:
        """An entry whose `Archived` commands name the places and trees that there are."""
        if entry.kind != EntryKind.COMMANDS:
            return entry
        try:
            batch = decode_batch(entry.payload)
        except msgspec.DecodeError:
            return entry
        if not any(isinstance(command, Archived) for command in batch.commands):
            return entry
        commands: list[Command] = [
            replace(
                command,
                previous=self.at[command.previous.index],
                position=self.at[command.position.index],
                tree=command.tree and self.trees.get(command.position.index, command.tree),
            )
            if isinstance(command, Archived)
            else command
            for command in batch.commands
        ]
        payload = encode_batch(Batch(batch.now_ms, commands, batch.packages))
        return replace(entry, payload=payload)


def put_state(folder: Folder, of: CheckpointOf, rows: Rows) -> str:
    """Put a state's piece and its manifest; returns the full name of that."""
    writer = CheckpointWriter(of)
    data = b"".join(
        len(key).to_bytes(4) + len(value).to_bytes(4) + key + value
        for key, value in sorted(rows.items())
    )
    folder.put(*writer.piece(data))
    return folder.put(*writer.manifest())


def move_state(of: CheckpointOf, rows: Rows, places: Places) -> CheckpointOf:
    header = msgspec.msgpack.decode(rows[keys.HEADER], type=Header)
    tree = header.tree
    if tree.first_index:
        tree = places.trees.get(header.archived.index, tree)
    archived = places.at[header.archived.index]
    edit_row(rows, keys.HEADER, Header, archived=archived, tree=tree)
    place = places.at[of.index]
    return replace(of, chain=place.chain, term=place.term, time_ms=place.time_ms)


def _refer_to_pack(
    of: CheckpointOf, rows: Rows, name: str, flush: FlushCold, refs: list[SliceRef]
) -> CheckpointOf:
    key = keys.pack_key(flush.term, flush.number)
    if key not in rows:
        return of
    edit_row(rows, key, Pack, name=flush.name, size=flush.size)
    for ref in refs:
        slice_key = keys.slice_key(ref.stream_id, ref.end_record)
        if slice_key not in rows:
            continue
        grown = ref.length - msgspec.msgpack.decode(rows[slice_key], type=ColdSlice).length
        edit_row(
            rows,
            slice_key,
            ColdSlice,
            start_record=ref.start_record,
            start_byte=ref.start_byte,
            end_byte=ref.end_byte,
            offset=ref.offset,
            length=ref.length,
            crc=ref.crc,
            digest=ref.digest,
        )
        edit_row(rows, key, Pack, live=msgspec.msgpack.decode(rows[key], type=Pack).live + grown)
        count(rows, cold_bytes=grown)
    return of
