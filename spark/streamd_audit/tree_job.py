"""``audit_tree``: whether the log is the one of which heads were signed.

The checksums of a store do not find somebody who writes all of it again. A head that was kept
elsewhere does: its root is that of one log only, up to its last entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from streamd_audit import log_trees
from streamd_audit.arrow import map_in_arrow
from streamd_audit.context import Context, Judged, columns_of
from streamd_audit.errors import Damaged, ObjectMissing
from streamd_audit.findings import Finding, finding
from streamd_audit.frames import batches_of, rows_in
from streamd_audit.framing import check_digest
from streamd_audit.heads import kept_heads, stored_head
from streamd_audit.log_ends import last_entries
from streamd_audit.log_trees import Part, Place, part_of
from streamd_audit.names import HeadName, SegmentName, parse, split
from streamd_audit.options import NotRun
from streamd_audit.proof import Head
from streamd_audit.replay.stored import headers_of
from streamd_audit.runner import run
from streamd_audit.segments import read_entries, read_tree
from streamd_audit.sources.log import LogReader
from streamd_audit.sources.planning import Piece
from streamd_audit.store import Store
from streamd_audit.tree import placed, root_of

_PARTS_DDL = "`group` int, first long, object string, body binary, problem string"
_PLACES_DDL = "body binary"


class Claim(NamedTuple):
    """Something says that the tree from entry `first_index` on had `root` with `size` leaves;
    another one is a finding of `kind`, and a log that ends before is one of `beyond`."""

    kind: str
    beyond: str | None
    group: int
    first_index: int
    size: int
    root: bytes
    object: str

    @property
    def last(self) -> int:
        """The entry that is the last leaf."""
        return self.first_index + self.size - 1


def tree_job(context: Context) -> Judged:
    """The trees of all segments, and whatever names one."""
    kept = _kept(context)
    claims = [*map(_claim_of_kept, kept), *_claims_of_states(context)]
    found = list(_of_stored_heads(context, claims))
    roots, broken = _trees(context, {claim.last for claim in claims})
    found += broken
    judged = list(judge_claims(context.cluster, claims, roots, last_entries(context)))
    found += (one for one in judged if isinstance(one, Finding))
    unknown = [one for one in judged if isinstance(one, Claim)]

    def facts() -> Mapping[str, Any]:
        return {"heads": told_heads(kept, unknown, roots), "head_count": len(kept)}

    return Judged(found, [], facts)


def main(arguments: Sequence[str] | None = None) -> int:
    return run({"audit_tree": tree_job}, "Compare the log with signed heads.", arguments)


def judge_claims(
    cluster: str,
    claims: Iterable[Claim],
    roots: Collection[Place],
    last: Mapping[int, int],
) -> Iterator[Finding | Claim]:
    """What contradicts claims, and the claims that cannot be judged: what they are about was
    removed with age."""
    known = {(one.group, one.first_index, one.size): one.root for one in roots if one.root}
    first = {(one.group, one.first_index) for one in roots}
    for claim in claims:
        root = known.get((claim.group, claim.first_index, claim.size))
        end = last.get(claim.group, 0)
        if root == claim.root:
            continue
        kind = claim.kind
        if root is not None:
            told = root.hex()
        elif end < claim.last:
            if claim.beyond is None:
                continue
            kind, told = claim.beyond, f"the last one is {end}" if end else "no log"
        elif (claim.group, claim.first_index) in first:
            yield claim
            continue
        else:
            told = "no tree that begins there"
        yield finding(
            kind,
            cluster=cluster,
            group=claim.group,
            index=claim.last,
            object=claim.object or None,
            expected=(
                f"entries up to {claim.last}"
                if kind == claim.beyond
                else f"root {claim.root.hex()} of {claim.size} entries from {claim.first_index} on"
            ),
            found=told,
        )


def told_heads(kept: Sequence[Head], unknown: Sequence[Claim], roots: Collection[Place]) -> str:
    """A line of the summary."""
    if not any(one.root for one in roots):
        told = "the log has no hash tree: a release before heads wrote it"
    elif not kept:
        told = "none was given (--expect): anyone who can write to the store could have written all"
    else:
        newest = max(kept, key=lambda head: head.time_ms)
        last = newest.first_index + newest.size - 1
        told = f"the log up to entry {last:,} is the one of {len(kept)} heads that were kept"
    old = sum(not claim.object for claim in unknown)
    return f"{told}; {old} of them are older than the archive" if old else told


# -- what names a tree -----------------------------------------------------------------------


def _kept(context: Context) -> list[Head]:
    heads, key = kept_heads(context.options.expect, context.options.key)
    context.notes["trusted_key"] = key
    for head in heads:
        if head.cluster != f"streamd/{context.cluster}":
            raise NotRun(f"--expect: a head is of {head.cluster}, the audit of {context.cluster}")
    context.notes["kept_heads"] = heads
    return heads


def _claim_of_kept(head: Head) -> Claim:
    return Claim(
        "history_changed", "history_rolled_back", head.group, head.first_index, head.size,
        head.root, "",
    )  # fmt: skip


def _claims_of_states(context: Context) -> Iterator[Claim]:
    for state, header in headers_of(context).items():
        first_index, index = header.tree.first_index, header.archived.index
        if first_index:
            size = index - first_index + 1
            nodes = placed(size, header.tree.nodes) if size > 0 else None
            root = root_of(nodes) if nodes else b""
            yield Claim("tree_differs", None, state.group, first_index, size, root, state.object)


def _of_stored_heads(context: Context, claims: list[Claim]) -> Iterator[Finding]:
    """What is wrong with heads in the store; adds what the others claim."""
    for name in context.listing.heads:
        named = parse(split(name)[1])
        assert isinstance(named, HeadName)
        try:
            content = context.store.read(name)
            check_digest(name, content)
            head = stored_head(content, named, context.cluster, context.notes["trusted_key"])
        except ObjectMissing:
            continue  # the newest few are kept
        except Damaged as damaged:
            yield finding(
                "head_damaged",
                cluster=context.cluster,
                group=named.group,
                index=named.index,
                object=name,
                found=damaged.detail,
            )
            continue
        claims.append(
            Claim(
                "head_differs", "log_end_missing", head.group, head.first_index, head.size,
                head.root, name,
            )
        )  # fmt: skip


# -- the trees of segments -------------------------------------------------------------------


class TreeReader(LogReader):
    """Reads whole segments, and makes a row of each (`_PARTS_DDL`)."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, places: Collection[int]
    ) -> None:
        super().__init__({**options, "overlaps": "true"}, schema)
        self._places = frozenset(places)

    def parts_of(self, name: str, size: int) -> int:
        return 1

    def batches(self, store: Store, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            name = parse(self.below(piece.name))
            assert isinstance(name, SegmentName)
            row = part_row(store, piece.name, name, self._places)
            if row is not None:
                yield from batches_of(_PARTS_DDL, [row])


def part_row(
    store: Store, name: str, named: SegmentName, places: Collection[int]
) -> tuple[int, int, str, bytes, str | None] | None:
    """A row of `_PARTS_DDL`; None for a segment that cannot be read, as other jobs tell."""
    try:
        content = store.read(name)
        tree = read_tree(content)
        part = Part(named.group, 0, named.first, name, [], [])
    except (ObjectMissing, Damaged):
        return None
    problem = None
    if tree is not None:
        try:
            entries = read_entries(content, first_index=tree.begin)
            part = part_of(named.group, name, tree, entries, places)
        except Damaged as damaged:
            problem = damaged.detail
    return named.group, named.first, name, log_trees.encode(part), problem


def _trees(context: Context, places: set[int]) -> tuple[list[Place], list[Finding]]:
    """The roots of the log's trees at places, and at their ends; and what is wrong with them."""
    for overlap in context.listing.overlaps:
        places |= {overlap.first - 1, overlap.last}
    reader = TreeReader(context.of_sources, columns_of(_PARTS_DDL), places)
    parts = context.keep(context.read(reader, _PARTS_DDL))
    broken = [
        _differs(context, row["group"], row["first"], row["object"], row["problem"])
        for row in parts.where("problem is not null").collect()
    ]
    ordered = parts.where("problem is null").repartition(1)
    ordered = ordered.sortWithinPartitions("group", "first", "object")

    def together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        each = (log_trees.decode_part(body) for (body,) in rows_in(batches, "body"))
        yield from batches_of(
            _PLACES_DDL, ((log_trees.encode(one),) for one in log_trees.follow(each, places))
        )

    rows = map_in_arrow(ordered.select("body"), together, _PLACES_DDL).collect()
    roots = [log_trees.decode_place(row["body"]) for row in rows]
    for one in roots:
        if one.root is None:
            index = one.first_index + one.size
            told = "it names another tree than the entries before it have, or none"
            broken.append(_differs(context, one.group, index, one.object, told))
    return roots, broken


def _differs(context: Context, group: int, index: int, name: str, told: str) -> Finding:
    return finding(
        "tree_differs",
        cluster=context.cluster,
        group=group,
        index=index,
        object=name,
        expected="the tree that the log's entries have",
        found=told,
    )
