"""One pack: its bytes, and the slices that states refer to.

A pack whose digest differs from the one in its name is examined until it is clear what happened:
the same wrong digest can mean a flipped bit or a pack of another cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from streamd_audit.errors import (
    BAD_MSGPACK,
    FOOTER_CRC,
    SLICE_CRC,
    TOO_SHORT,
    UNKNOWN_FIELD,
    UNKNOWN_VERSION,
    Damaged,
)
from streamd_audit.findings import Finding, finding
from streamd_audit.names import PackName
from streamd_audit.packs import (
    SLICE_HEAD_BYTES,
    Chunk,
    SliceRef,
    check_footer_known,
    check_slice,
    read_chunk,
    read_head,
    read_pack,
    read_slice,
    read_slice_head,
    records_digest,
    walk,
)
from streamd_audit.strict import check_known


class Held(NamedTuple):
    """A slice as it is: the digests of its records, 16 bytes each, and how many records each
    append brought; None for what cannot be read."""

    digests: bytes | None
    appends: Sequence[int]


@dataclass
class JudgedPack:
    """`held` has one element for each reference, in the same order."""

    findings: list[Finding]
    held: list[Held]


_UNREADABLE = Held(None, ())
_RECORD_DIGEST_BYTES = 16


def judge_pack(
    name: str,
    named: PackName,
    content: bytes,
    size: int,
    refs: Sequence[SliceRef],
    cluster: str,
) -> JudgedPack:
    """Judge a whole pack that states say to have `size` bytes. `name` has the folder of the cluster
    that wrote it, `cluster` is the one that refers to it."""
    judge = _Judge(name, named, content, cluster)
    if len(content) != size:
        kind = "pack_replaced" if judge.is_whole() else "pack_truncated"
        judge.add(kind, expected=f"{size} bytes", found=f"{len(content)} bytes")
        return JudgedPack(judge.findings, [judge.slice(ref)[1] for ref in refs])
    found = sha256(content).hexdigest()
    checked = [judge.slice(ref) for ref in refs]
    wrong = [(ref, why) for ref, (why, _) in zip(refs, checked, strict=True) if why is not None]
    if wrong:
        judge.slices(refs, wrong)
    if found != named.digest and not judge.findings:
        judge.aside(found)
    elif not judge.findings:
        judge.rest(refs)
    return JudgedPack(judge.findings, [held for _, held in checked])


_UNKNOWN = (UNKNOWN_VERSION, UNKNOWN_FIELD)


class _Judge:
    def __init__(self, name: str, named: PackName, content: bytes, cluster: str) -> None:
        self._name, self._named, self._cluster = name, named, cluster
        self._content = content
        self._view = memoryview(content)
        self.findings: list[Finding] = []

    def add(self, kind: str, **more: object) -> None:
        self.findings.append(
            finding(
                kind,
                cluster=self._cluster,
                group=self._named.group,
                object=self._name,
                **more,  # type: ignore[arg-type]
            )
        )

    def slice(self, ref: SliceRef) -> tuple[str | None, Held]:
        """What is wrong with a slice, as the kind of its finding, and what the slice holds."""
        view = self._view[ref.offset : ref.offset + ref.length]
        try:
            found = read_slice(view)
        except Damaged as damaged:
            is_whole = damaged.kind not in (SLICE_CRC, TOO_SHORT)
            return ("slice_altered" if is_whole else "slice_damaged"), _UNREADABLE
        chunk = found.chunk
        if _place(found.stream_id, chunk) != _place_said(ref):
            moved = Chunk(
                ref.start_record, ref.start_byte, chunk.lengths, chunk.appends, chunk.data
            )
            is_right = records_digest(moved) == ref.digest
            return ("slice_misplaced" if is_right else "slice_altered"), _UNREADABLE
        if found.crc != ref.crc or records_digest(chunk) != ref.digest:
            return "slice_altered", _UNREADABLE
        try:
            check_known(chunk, view[SLICE_HEAD_BYTES:], "a slice")
        except Damaged:
            return "format_unknown", _UNREADABLE
        return None, Held(record_digests(chunk.lengths, chunk.data), chunk.appends)

    def slices(self, refs: Sequence[SliceRef], wrong: Sequence[tuple[SliceRef, str]]) -> None:
        """Report what is wrong with the slices that are referred to."""
        walked = {crc: offset for offset, crc in self._walk()}
        is_other = (
            len(wrong) == len(refs)
            and self.is_whole()
            and not any(ref.crc in walked or self._alike(ref) for ref in refs)
        )
        if is_other:
            self.add(
                "pack_replaced",
                expected=f"the pack with {_told(refs[0])}",
                found=f"a pack of {len(walked)} other slices",
            )
            return
        swapped = [ref for ref, _ in wrong if walked.get(ref.crc, ref.offset) != ref.offset]
        if swapped:
            self.add(
                "slices_swapped",
                stream_id=swapped[0].stream_id,
                offset=(swapped[0].start_record, swapped[0].start_byte),
                expected=f"{_told(swapped[0])} at byte {swapped[0].offset}",
                found=f"them at byte {walked[swapped[0].crc]}",
            )
        for ref, why in wrong:
            if ref not in swapped:
                self._slice_finding(ref, why, bool(swapped))

    def _slice_finding(self, ref: SliceRef, why: str, is_shifted: bool) -> None:
        if is_shifted and why == "slice_damaged":
            return  # the slice that is here begins elsewhere
        found = "bytes of another CRC-32C"
        if why == "slice_altered":
            found = "a slice of other records"
        elif why == "format_unknown":
            found = "more than this audit knows"
        elif why == "slice_misplaced":
            found = self._place_at(ref)
        self.add(
            why,
            stream_id=ref.stream_id,
            offset=(ref.start_record, ref.start_byte),
            expected=f"{_told(ref)} at byte {ref.offset}",
            found=found,
        )

    def _place_at(self, ref: SliceRef) -> str:
        found = read_slice(self._view[ref.offset : ref.offset + ref.length])
        first, end = found.chunk.start_record, found.chunk.end_record
        return f"records {first} to {end} of stream id {found.stream_id}"

    def aside(self, digest: str) -> None:
        """Report what is wrong with a pack in which every slice that is referred to is right."""
        problem = self._problem()
        expected, found = f"SHA-256 {self._named.digest}", f"SHA-256 {digest}"
        if problem is None:
            self.add("pack_altered", expected=expected, found=found)
        elif problem.kind in _UNKNOWN:
            self.add("format_unknown", found=problem.detail)
        else:
            kind = "pack_footer_damaged" if self._is_headed() else "pack_damaged"
            self.add(kind, expected=expected, found=problem.detail)

    def rest(self, refs: Sequence[SliceRef]) -> None:
        """Report what is wrong with a pack that has its digest, whose slices are right: its
        footer, or the numbers in its name."""
        problem = self._problem()
        if problem is None:
            problem = self._in_footer(refs)
            if problem is not None:
                self.add("pack_footer_damaged", found=problem.detail)
                return
        if problem is not None:
            kind = "format_unknown" if problem.kind in _UNKNOWN else "pack_damaged"
            self.add(kind, found=problem.detail)
            return
        said, named = read_head(self._view), self._named
        if (said.group, said.term, said.number) != (named.group, named.term, named.number):
            self.add(
                "pack_replaced",
                expected=f"pack {named.number} of term {named.term}, group {named.group}",
                found=f"pack {said.number} of term {said.term}, group {said.group}",
            )

    def is_whole(self) -> bool:
        """Whether this is a pack from head to end, whatever its slices."""
        return self._problem() is None

    def _problem(self) -> Damaged | None:
        """What is wrong apart from the slices that are referred to."""
        try:
            _, refs = read_pack(self._content)
            check_footer_known(self._content, refs)
        except Damaged as damaged:
            return damaged
        if [(ref.offset, ref.crc) for ref in refs] != list(self._walk()):
            return Damaged(SLICE_CRC, "a slice that no state refers to is damaged")
        return None

    def _in_footer(self, right: Sequence[SliceRef]) -> Damaged | None:
        """What the footer says of slices that they are not; those in `right` are known to be."""
        known = set(right)
        try:
            for ref in read_pack(self._content)[1]:
                if ref not in known:
                    check_slice(ref, read_slice(self._view[ref.offset : ref.offset + ref.length]))
        except Damaged as damaged:
            return damaged
        return None

    def _is_headed(self) -> bool:
        """Whether the head and all slices are whole, so that damage is in the footer or the end."""
        try:
            read_head(self._content)
            _, refs = read_pack(self._content)
        except Damaged as damaged:
            return damaged.kind in (FOOTER_CRC, BAD_MSGPACK) or "end" in damaged.detail
        return not refs

    def _walk(self) -> Iterator[tuple[int, int]]:
        """Offset and CRC-32C of the slices that lie end to end and are whole."""
        return ((at, read_slice_head(found).crc) for at, found in walk(self._content))

    def _alike(self, ref: SliceRef) -> bool:
        """Whether a slice that says it has the same records begins where a reference points."""
        view = self._view[ref.offset : ref.offset + ref.length]
        if len(view) < max(ref.length, SLICE_HEAD_BYTES):
            return False
        head = read_slice_head(view)
        if (head.stream_id, head.length) != (ref.stream_id, ref.length - SLICE_HEAD_BYTES):
            return False
        try:
            chunk = read_chunk(view[SLICE_HEAD_BYTES:])
        except Damaged:
            return True
        return _place(head.stream_id, chunk)[:2] == _place_said(ref)[:2]


def _place(stream_id: int, chunk: Chunk) -> tuple[int, ...]:
    start = chunk.start_record, chunk.start_byte
    return stream_id, *start, chunk.end_record, chunk.end_byte


def _place_said(ref: SliceRef) -> tuple[int, ...]:
    return ref.stream_id, ref.start_record, ref.start_byte, ref.end_record, ref.end_byte


def _told(ref: SliceRef) -> str:
    return f"records {ref.start_record} to {ref.end_record} of stream id {ref.stream_id}"


def record_digests(lengths: Sequence[int], data: memoryview) -> bytes:
    """Of each record the first half of its SHA-256, end to end."""
    parts = []
    at = 0
    for length in lengths:
        parts.append(sha256(data[at : at + length]).digest()[:_RECORD_DIGEST_BYTES])
        at += length
    return b"".join(parts)
