"""The names of objects, below the folder that is named by the cluster's id.

=============================================================  ===================================
``packs/{group}/{term}-{number}-{digest}.pack``                slices of many streams (`packs`)
``log/{group}/{first}-{last}-{digest}.segment``                committed entries (`segments`)
``pieces/{group}/{index}-{id}-{number}-{digest}.piece``        part of a checkpoint's rows
``snapshots/{group}/{index}-{id}-{digest}.manifest``           a whole checkpoint: its pieces
``ends/{group}/{index}-{term}-{chain}-{digest}.end``           how far the log is archived (`ends`)
``fence/{cluster id}``                                         the cluster restored from this one
``checks/{random}``                                            a node checks that it may write
=============================================================  ===================================

Numbers are hexadecimal and of fixed width, so that names sort as the numbers do. The digest is
SHA-256 of the whole object, so that an object by itself shows whether it is what was written.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import NamedTuple

from streamd.objectstore.errors import ObjectCorrupt

PACKS = "packs/"
LOG = "log/"
PIECES = "pieces/"
CHECKPOINTS = "snapshots/"
ENDS = "ends/"
FENCE = "fence/"
CHECKS = "checks/"

_CLUSTER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DIGEST = r"(?P<digest>[0-9a-f]{64})"
_PACK = re.compile(rf"packs/([0-9a-f]{{8}})/([0-9a-f]{{16}})-([0-9a-f]{{8}})-{_DIGEST}\.pack")
_SEGMENT = re.compile(rf"log/([0-9a-f]{{8}})/([0-9a-f]{{16}})-([0-9a-f]{{16}})-{_DIGEST}\.segment")
_PIECE = re.compile(
    rf"pieces/([0-9a-f]{{8}})/([0-9a-f]{{16}})-([0-9a-f]{{16}})-([0-9a-f]{{8}})-{_DIGEST}\.piece"
)
_MANIFEST = re.compile(
    rf"snapshots/([0-9a-f]{{8}})/([0-9a-f]{{16}})-([0-9a-f]{{16}})-{_DIGEST}\.manifest"
)
_END = re.compile(
    rf"ends/([0-9a-f]{{8}})/([0-9a-f]{{16}})-([0-9a-f]{{16}})-([0-9a-f]{{8}})-{_DIGEST}\.end"
)


class NamedObject(NamedTuple):
    """An object to be put."""

    name: str
    content: bytes


class PackName(NamedTuple):
    """The `number`-th pack that the leader of `term` has made."""

    digest: str
    group_id: int
    term: int
    number: int


class SegmentName(NamedTuple):
    """A segment with the entries from `first_index` to `last_index`."""

    digest: str
    group_id: int
    first_index: int
    last_index: int


class PieceName(NamedTuple):
    """The `number`-th piece of a checkpoint, whose state is as of entry `log_index`."""

    digest: str
    group_id: int
    log_index: int
    snapshot_id: int
    number: int


class ManifestName(NamedTuple):
    """The manifest of a checkpoint, whose state is as of entry `log_index`."""

    digest: str
    group_id: int
    log_index: int
    snapshot_id: int


class EndName(NamedTuple):
    """A pointer to the archive's end: an entry's index, term and chain."""

    digest: str
    group_id: int
    log_index: int
    term: int
    chain: int


def digest_of(content: bytes | bytearray) -> str:
    """The SHA-256 of an object, in hexadecimal."""
    return sha256(content).hexdigest()


def cluster_folder(cluster_id: str) -> str:
    """What the full names of all objects of a cluster begin with."""
    return f"{cluster_id}/"


def cluster_of(name: str) -> str | None:
    """The id of the cluster in whose folder an object is; None when it is in none."""
    first = name.partition("/")[0]
    return first if _CLUSTER.fullmatch(first) else None


def fence_name(restored_cluster_id: str) -> str:
    """The name of the fence that a restored cluster puts into the old cluster's folder."""
    return f"{FENCE}{restored_cluster_id}"


def group_folder(kind: str, group_id: int) -> str:
    """What all names of one kind and group begin with."""
    return f"{kind}{group_id:08x}/"


def pack_name(group_id: int, term: int, number: int, digest: str) -> str:
    """See `PackName`."""
    return f"{group_folder(PACKS, group_id)}{term:016x}-{number:08x}-{digest}.pack"


def segment_name(group_id: int, first_index: int, last_index: int, digest: str) -> str:
    """See `SegmentName`."""
    return f"{group_folder(LOG, group_id)}{first_index:016x}-{last_index:016x}-{digest}.segment"


def piece_name(group_id: int, index: int, snapshot_id: int, number: int, digest: str) -> str:
    """See `PieceName`."""
    folder = group_folder(PIECES, group_id)
    return f"{folder}{index:016x}-{snapshot_id:016x}-{number:08x}-{digest}.piece"


def manifest_name(group_id: int, index: int, snapshot_id: int, digest: str) -> str:
    """See `ManifestName`."""
    folder = group_folder(CHECKPOINTS, group_id)
    return f"{folder}{index:016x}-{snapshot_id:016x}-{digest}.manifest"


def end_name(group_id: int, index: int, term: int, chain: int, digest: str) -> str:
    """See `EndName`."""
    return f"{group_folder(ENDS, group_id)}{index:016x}-{term:016x}-{chain:08x}-{digest}.end"


def parse_pack_name(name: str) -> PackName | None:
    """The parts of a pack's name; None when `name` is not one."""
    match = _PACK.fullmatch(name)
    return match and PackName(match["digest"], *_numbers(match))


def parse_segment_name(name: str) -> SegmentName | None:
    """The parts of a segment's name; None when `name` is not one."""
    match = _SEGMENT.fullmatch(name)
    return match and SegmentName(match["digest"], *_numbers(match))


def parse_piece_name(name: str) -> PieceName | None:
    """The parts of a piece's name; None when `name` is not one."""
    match = _PIECE.fullmatch(name)
    return match and PieceName(match["digest"], *_numbers(match))


def parse_manifest_name(name: str) -> ManifestName | None:
    """The parts of a manifest's name; None when `name` is not one."""
    match = _MANIFEST.fullmatch(name)
    return match and ManifestName(match["digest"], *_numbers(match))


def parse_end_name(name: str) -> EndName | None:
    """The parts of an end's name; None when `name` is not one."""
    match = _END.fullmatch(name)
    return match and EndName(match["digest"], *_numbers(match))


def check_digest(name: str, content: bytes) -> None:
    """Raises `ObjectCorrupt` unless `content` is what the digest in `name` was made of."""
    digest = name.rpartition(".")[0].rpartition("-")[2]
    if digest != digest_of(content):
        raise ObjectCorrupt(f"{name} does not have the digest that it is named by")


def _numbers(match: re.Match[str]) -> list[int]:
    return [int(number, 16) for number in match.groups()[:-1]]
