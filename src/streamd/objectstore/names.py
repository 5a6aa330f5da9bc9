"""The names of objects, below the folder that is named by the cluster's id.

=============================================================  ===================================
``packs/{group}/{term}-{number}-{digest}.pack``                slices of many streams (`packs`)
``log/{group}/{first}-{last}-{digest}.segment``                committed entries (`segments`)
``pieces/{group}/{index}-{id}-{number}-{digest}.piece``        part of a checkpoint's rows
``snapshots/{group}/{index}-{id}-{digest}.manifest``           a whole checkpoint: its pieces
``ends/{group}/{index}-{term}-{chain}-{digest}.end``           how far the log is archived (`ends`)
``heads/{group}/{index}-{digest}.head``                        a signed head of the log's tree
``fence/{cluster id}``                                         the cluster restored from this one
``checks/{random}``                                            a node's test of write access
=============================================================  ===================================

Numbers are hexadecimal and of fixed width, so that names sort like the numbers. The digest is
SHA-256 of the whole object, so that an object by itself shows whether it is what was written.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple, Self

import msgspec

from streamd.objectstore.errors import ObjectCorrupt

PACKS = "packs/"
LOG = "log/"
PIECES = "pieces/"
CHECKPOINTS = "snapshots/"
ENDS = "ends/"
HEADS = "heads/"
FENCE = "fence/"
CHECKS = "checks/"

_CLUSTER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"{(\w+):0(\d+)x}")


class NamedObject(NamedTuple):
    """An object to put."""

    name: str
    content: bytes


class ObjectName(msgspec.Struct, frozen=True):
    """A name whose parts are the fields, written as `FORM` says."""

    FORM: ClassVar[str]

    group_id: int

    def __str__(self) -> str:
        return self.FORM.format(**msgspec.structs.asdict(self))

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The parts of a name; None when `name` is not one of this kind."""
        match = _pattern(cls.FORM).fullmatch(name)
        if match is None:
            return None
        parts: dict[str, Any] = match.groupdict()
        for number in parts.keys() - {"digest"}:
            parts[number] = int(parts[number], 16)
        return cls(**parts)


@cache
def _pattern(form: str) -> re.Pattern[str]:
    form = form.replace(".", r"\.").replace("{digest}", "(?P<digest>[0-9a-f]{64})")
    return re.compile(_NUMBER.sub(r"(?P<\1>[0-9a-f]{\2})", form))


class PackName(ObjectName, frozen=True):
    """The `number`-th pack that the leader of `term` has made."""

    FORM = PACKS + "{group_id:08x}/{term:016x}-{number:08x}-{digest}.pack"

    term: int
    number: int
    digest: str


class SegmentName(ObjectName, frozen=True):
    """A segment with the entries from `first_index` to `last_index`."""

    FORM = LOG + "{group_id:08x}/{first_index:016x}-{last_index:016x}-{digest}.segment"

    first_index: int
    last_index: int
    digest: str


class PieceName(ObjectName, frozen=True):
    """The `number`-th piece of a checkpoint, whose state is as of entry `log_index`."""

    FORM = PIECES + "{group_id:08x}/{log_index:016x}-{snapshot_id:016x}-{number:08x}-{digest}.piece"

    log_index: int
    snapshot_id: int
    number: int
    digest: str


class ManifestName(ObjectName, frozen=True):
    """The manifest of a checkpoint, whose state is as of entry `log_index`."""

    FORM = CHECKPOINTS + "{group_id:08x}/{log_index:016x}-{snapshot_id:016x}-{digest}.manifest"

    log_index: int
    snapshot_id: int
    digest: str


class EndName(ObjectName, frozen=True):
    """A pointer to the archive's end: an entry's index, term and chain."""

    FORM = ENDS + "{group_id:08x}/{log_index:016x}-{term:016x}-{chain:08x}-{digest}.end"

    log_index: int
    term: int
    chain: int
    digest: str


class HeadName(ObjectName, frozen=True):
    """A signed head of the tree over the log, whose last leaf is the entry `log_index`."""

    FORM = HEADS + "{group_id:08x}/{log_index:016x}-{digest}.head"

    log_index: int
    digest: str


def digest_of(content: bytes | bytearray) -> str:
    """The SHA-256 of an object, in hexadecimal."""
    return sha256(content).hexdigest()


def cluster_folder(cluster_id: str) -> str:
    """The prefix of the full names of all objects of a cluster."""
    return f"{cluster_id}/"


def cluster_of(name: str) -> str | None:
    """The id of the cluster in whose folder an object is; None if it is in none."""
    first = name.partition("/")[0]
    return first if _CLUSTER.fullmatch(first) else None


def fence_name(restored_cluster_id: str) -> str:
    """The name of the fence that a restored cluster puts into the old cluster's folder."""
    return f"{FENCE}{restored_cluster_id}"


def group_folder(kind: str, group_id: int) -> str:
    """The prefix of all names of one kind and group."""
    return f"{kind}{group_id:08x}/"


def check_digest(name: str, content: bytes) -> None:
    """Raises `ObjectCorrupt` unless `content` has the digest in `name`."""
    expect_digest(name, digest_of(content))


def expect_digest(name: str, digest: str) -> None:
    """Raises `ObjectCorrupt` unless `digest`, that of an object's content, is the one in `name`."""
    if digest != name.rpartition(".")[0].rpartition("-")[2]:
        raise ObjectCorrupt(f"{name} does not have the digest in its name")
