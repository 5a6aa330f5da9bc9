"""``streamd_slices``: the slices of packs, by their footers, and the records in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from streamd_audit.errors import SLICE_CRC, Damaged, ObjectMissing
from streamd_audit.framing import Buffer, check_digest
from streamd_audit.names import PackName, parse
from streamd_audit.packs import (
    Chunk,
    Slice,
    SliceRef,
    check_name,
    check_slice,
    read_pack,
    read_refs,
    read_slice,
    records_digest,
    walk,
)
from streamd_audit.sources.log_columns import binary, digests_of
from streamd_audit.sources.packs import PacksReader
from streamd_audit.sources.planning import Piece
from streamd_audit.sources.source import BATCH_BYTES, BATCH_ROWS, BucketSource, columns
from streamd_audit.store import Store

_OF_RECORDS = ("crc_ok", "appends", "lengths", "payload", "digests")
_OF_REFS = ("stream_id", "start_record", "end_record")
# Slices this close to one another are read in one request, up to this size.
_GAP_BYTES = 256 * 1024
_REQUEST_BYTES = 8 * 1024 * 1024


class Found(msgspec.Struct, gc=False):
    """A slice: where its footer says it is, and what is there, if it is what the footer says."""

    number: int
    ref: SliceRef
    crc_ok: bool | None = None
    chunk: Chunk | None = None
    problem: str | None = None


class SlicesReader(PacksReader):
    OF_NAME: ClassVar = {"group": "group", "pack_term": "term", "pack_number": "number"}

    def parts_of(self, name: str, size: int) -> int:
        if "pack_sha256_ok" in self.columns:
            return 1
        return -(-size // self.task_bytes) if self._needs_records else 1

    @property
    def _needs_records(self) -> bool:
        return not self.columns.isdisjoint(_OF_RECORDS)

    def batches(self, store: Store, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            name = parse(self.below(piece.name))
            if not isinstance(name, PackName):
                continue
            try:
                yield from self._pack(store, piece, name)
            except ObjectMissing:
                continue  # dead, and removed since it was listed
            except Damaged as damaged:
                if piece.part == 0:
                    yield self._problem(piece, name, damaged)

    def _pack(self, store: Store, piece: Piece, name: PackName) -> Iterator[pa.RecordBatch]:
        """The slices of a pack. Raises `Damaged` for what is wrong with the pack as a whole."""
        is_narrowed = piece.parts > 1 or any(column in self.filters for column in _OF_REFS)
        needs_digest = "pack_sha256_ok" in self.columns
        if not needs_digest and (is_narrowed or not self._needs_records):
            refs = read_refs(partial(store.read, piece.name), piece.size)
            wanted = [
                Found(number, ref)
                for number, ref in enumerate(refs)
                if self._is_wanted(ref) and ref.offset * piece.parts // piece.size == piece.part
            ]
            if not self._needs_records:
                yield from self._rows(piece, name, wanted, None)
                return
            for run in _runs(wanted):
                first, last = run[0].ref, run[-1].ref
                content = store.read(piece.name, first.offset, _end(last) - first.offset)
                self._decode(run, content, first.offset)
                yield from self._rows(piece, name, run, None)
            return
        content = store.read(piece.name)
        sha256_ok = None
        wrong: list[Damaged] = []
        if needs_digest:
            sha256_ok = not _caught(wrong, check_digest, piece.name, content)
        footer = _caught_value(wrong, read_pack, content)
        if footer is None:
            found = list(_recovered(content))
        else:
            head, refs = footer
            _caught(wrong, check_name, name, head)
            found = [Found(number, ref) for number, ref in enumerate(refs) if self._is_wanted(ref)]
            if self._needs_records:
                self._decode(found, content, 0)
        yield from self._rows(piece, name, found, sha256_ok)
        # Damage with a name of its own comes before the digest, which is wrong for any reason.
        if wrong and not any(one.problem for one in found):
            raise wrong[-1]

    def _is_wanted(self, ref: SliceRef) -> bool:
        return all(self.filters.admits(column, getattr(ref, column)) for column in _OF_REFS)

    def _decode(self, found: Sequence[Found], content: bytes, start: int) -> None:
        """Read the slices whose bytes are in `content`, which begins at byte `start` of the
        pack."""
        view = memoryview(content)
        for one in found:
            ref = one.ref
            try:
                slice_ = read_slice(view[ref.offset - start : _end(ref) - start])
                one.crc_ok = slice_.crc == ref.crc
                one.chunk = slice_.chunk
                if "problem" in self.columns:
                    check_slice(ref, slice_)
            except Damaged as damaged:
                one.crc_ok = damaged.kind != SLICE_CRC and bool(one.crc_ok)
                one.problem = self.told(damaged)

    def _rows(
        self, piece: Piece, name: PackName, found: Sequence[Found], sha256_ok: bool | None
    ) -> Iterator[pa.RecordBatch]:
        own = {
            "cluster": self.cluster,
            "group": name.group,
            "pack_term": name.term,
            "pack_number": name.number,
            "object": piece.name,
            "pack_sha256_ok": sha256_ok,
        }
        for some in _batches(found):
            yield self.batch(len(some), own, partial(_column, some))

    def _problem(self, piece: Piece, name: PackName, damaged: Damaged) -> pa.RecordBatch:
        return self.problem_row(
            damaged,
            group=name.group,
            pack_term=name.term,
            pack_number=name.number,
            object=piece.name,
            pack_sha256_ok=False if "pack_sha256_ok" in self.columns else None,
        )


class SlicesSource(BucketSource):
    """One row for each slice of each pack, referred to or not."""

    NAME = "streamd_slices"
    READER = SlicesReader
    COLUMNS = columns(
        "cluster string, group int, pack_term bigint, pack_number bigint, object string, "
        "slice int, stream_id bigint, start_record bigint, start_byte bigint, "
        "end_record bigint, end_byte bigint, offset bigint, length bigint, crc bigint, "
        "records_digest binary, crc_ok boolean, appends array<int>, lengths array<int>, "
        "payload binary, digests binary, pack_sha256_ok boolean, problem string"
    )


def _recovered(content: bytes) -> Iterator[Found]:
    """The slices of a pack without a footer, as far as they can be read one after another."""
    for number, (at, view) in enumerate(walk(content)):
        try:
            found = read_slice(view)
        except Damaged:
            return
        yield Found(number, _ref_to(found, at), True, found.chunk)


def _ref_to(found: Slice, offset: int) -> SliceRef:
    chunk = found.chunk
    return SliceRef(
        found.stream_id,
        chunk.start_record,
        chunk.start_byte,
        chunk.end_record,
        chunk.end_byte,
        offset,
        found.length,
        found.crc,
        records_digest(chunk),
    )


def _end(ref: SliceRef) -> int:
    return ref.offset + ref.length


def _runs(found: Sequence[Found]) -> Iterator[list[Found]]:
    """Neighbours that are worth one request."""
    run: list[Found] = []
    for one in found:
        if run and (
            one.ref.offset - _end(run[-1].ref) > _GAP_BYTES
            or _end(one.ref) - run[0].ref.offset > _REQUEST_BYTES
        ):
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _batches(found: Sequence[Found]) -> Iterator[list[Found]]:
    some: list[Found] = []
    size = 0
    for one in found:
        some.append(one)
        size += 0 if one.chunk is None else len(one.chunk.data)
        if len(some) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _caught(wrong: list[Damaged], check: Callable[..., None], *about: Any) -> bool:
    """Whether a check fails; its exception goes to `wrong`."""
    try:
        check(*about)
    except Damaged as damaged:
        wrong.append(damaged)
        return True
    return False


def _caught_value(wrong: list[Damaged], read: Callable[[Buffer], Any], content: Buffer) -> Any:
    try:
        return read(content)
    except Damaged as damaged:
        wrong.append(damaged)
        return None


def _of_ref(name: str) -> Callable[[Sequence[Found]], list[Any]]:
    return lambda found: [getattr(one.ref, name) for one in found]


def _of_chunk(value: Callable[[Chunk], Any]) -> Callable[[Sequence[Found]], list[Any]]:
    return lambda found: [None if one.chunk is None else value(one.chunk) for one in found]


def _column(found: Sequence[Found], name: str) -> Any:
    return _COLUMNS[name](found)


_COLUMNS: dict[str, Callable[[Sequence[Found]], Any]] = {
    "slice": lambda found: [one.number for one in found],
    "stream_id": _of_ref("stream_id"),
    "start_record": _of_ref("start_record"),
    "start_byte": _of_ref("start_byte"),
    "end_record": _of_ref("end_record"),
    "end_byte": _of_ref("end_byte"),
    "offset": _of_ref("offset"),
    "length": _of_ref("length"),
    "crc": _of_ref("crc"),
    "records_digest": _of_ref("digest"),
    "crc_ok": lambda found: [one.crc_ok for one in found],
    "appends": _of_chunk(lambda chunk: chunk.appends or [1] * len(chunk.lengths)),
    "lengths": _of_chunk(lambda chunk: chunk.lengths),
    "payload": lambda found: binary([None if o.chunk is None else o.chunk.data for o in found]),
    "digests": _of_chunk(lambda chunk: digests_of(chunk.data, chunk.lengths)),
    "problem": lambda found: [one.problem for one in found],
}
