"""The names of objects below a cluster's folder (docs/formats.md, "Names")."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

PACKS = "packs/"
LOG = "log/"
PIECES = "pieces/"
SNAPSHOTS = "snapshots/"
ENDS = "ends/"
HEADS = "heads/"
FENCE = "fence/"
CHECKS = "checks/"

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_CLUSTER = re.compile(_UUID)
_GROUP = r"(?P<group>[0-9a-f]{8})/"
_DIGEST = r"(?P<digest>[0-9a-f]{64})"


# No server counts so far; rows have signed numbers.
_BITS = {"group": 31, "snapshot_id": 64}


def _hex(name: str, digits: int = 16) -> str:
    return rf"(?P<{name}>[0-9a-f]{{{digits}}})"


class PackName(msgspec.Struct, frozen=True):
    """The `number`-th pack that the leader of `term` wrote."""

    group: int
    term: int
    number: int
    digest: str


class SegmentName(msgspec.Struct, frozen=True):
    """A segment with the entries from `first` to `last`."""

    group: int
    first: int
    last: int
    digest: str


class PieceName(msgspec.Struct, frozen=True):
    """Piece `number`, from 0, of the snapshot `snapshot_id` as of entry `index`."""

    group: int
    index: int
    snapshot_id: int
    number: int
    digest: str


class ManifestName(msgspec.Struct, frozen=True):
    group: int
    index: int
    snapshot_id: int
    digest: str


class EndName(msgspec.Struct, frozen=True):
    """The archive of a group reaches entry `index`."""

    group: int
    index: int
    term: int
    chain: int
    digest: str


class HeadName(msgspec.Struct, frozen=True):
    """A signed head of the tree over the log, whose last leaf is entry `index`."""

    group: int
    index: int
    digest: str


class FenceName(msgspec.Struct, frozen=True):
    """The cluster `cluster` was made of the one in whose folder this is."""

    cluster: str


ObjectName = PackName | SegmentName | PieceName | ManifestName | EndName | HeadName | FenceName

_KINDS: dict[str, tuple[Callable[..., ObjectName], re.Pattern[str]]] = {
    PACKS: (
        PackName,
        re.compile(rf"packs/{_GROUP}{_hex('term')}-{_hex('number', 8)}-{_DIGEST}\.pack"),
    ),
    LOG: (
        SegmentName,
        re.compile(rf"log/{_GROUP}{_hex('first')}-{_hex('last')}-{_DIGEST}\.segment"),
    ),
    PIECES: (
        PieceName,
        re.compile(
            rf"pieces/{_GROUP}{_hex('index')}-{_hex('snapshot_id')}-{_hex('number', 8)}-{_DIGEST}"
            r"\.piece"
        ),
    ),
    SNAPSHOTS: (
        ManifestName,
        re.compile(rf"snapshots/{_GROUP}{_hex('index')}-{_hex('snapshot_id')}-{_DIGEST}\.manifest"),
    ),
    ENDS: (
        EndName,
        re.compile(
            rf"ends/{_GROUP}{_hex('index')}-{_hex('term')}-{_hex('chain', 8)}-{_DIGEST}\.end"
        ),
    ),
    HEADS: (HeadName, re.compile(rf"heads/{_GROUP}{_hex('index')}-{_DIGEST}\.head")),
    FENCE: (FenceName, re.compile(rf"fence/(?P<cluster>{_UUID})")),
}


def parse(name: str) -> ObjectName | None:
    """What the name of an object says, below the cluster's folder; None for no such name."""
    found = _fields_in(name)
    if found is None or not all(_is_possible(*field) for field in found[1].items()):
        return None
    kind, fields = found
    return kind(**fields)


def is_impossible(name: str) -> bool:
    """Whether a name has the form of one, and a number that is beyond 63 bits."""
    found = _fields_in(name)
    return found is not None and not all(_is_possible(*field) for field in found[1].items())


def _fields_in(name: str) -> tuple[Callable[..., ObjectName], dict[str, int | str]] | None:
    known = _KINDS.get(name[: name.find("/") + 1])
    if known is None:
        return None
    kind, pattern = known
    match = pattern.fullmatch(name)
    if match is None:
        return None
    # The groups of a pattern are the fields of its kind, by name.
    return kind, {
        field: text if field in ("digest", "cluster") else int(text, 16)
        for field, text in match.groupdict().items()
    }


def _is_possible(field: str, value: int | str) -> bool:
    return isinstance(value, str) or not value >> _BITS.get(field, 63)


def split(name: str) -> tuple[str | None, str]:
    """The cluster in whose folder an object is, and the rest of its name; None in no folder."""
    folder, slash, rest = name.partition("/")
    if slash and _CLUSTER.fullmatch(folder):
        return folder, rest
    return None, name


def is_cluster(text: str) -> bool:
    """Whether this can be a cluster's id."""
    return _CLUSTER.fullmatch(text) is not None


def group_folder(kind: str, group: int | None = None) -> str:
    """What the names of one kind (`PACKS`, …) begin with, below the cluster's folder."""
    return kind if group is None else f"{kind}{group:08x}/"
