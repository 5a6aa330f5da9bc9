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

    @property
    def is_kept(self) -> bool:
        """Whether a head that was kept outside of the store says so."""
        return not self.object


def tree_job(context: Context) -> Judged:
    """The trees of all segments, and whatever names one."""
    kept = kept_in(context)
    claims, found = claims_of(context, kept)
    roots, broken = _trees(context, places_asked(context, claims))
    found += broken
    found += odd_trees(context, roots)
    told, old = judged_claims(context, kept, claims, roots)
    found += told
    context.notes["proved_heads"] = [head for head in kept if _claim_of_kept(head) not in old]

    def facts() -> Mapping[str, Any]:
        return {"heads": told_heads(kept, old, roots), "head_count": len(kept)}

    return Judged(found, [], facts)


def main(arguments: Sequence[str] | None = None) -> int:
    return run({"audit_tree": tree_job}, "Compare the log with signed heads.", arguments)


def judge_claims(
    context: Context, claims: Iterable[Claim], roots: Collection[Place]
) -> Iterator[Finding | Claim]:
    """What contradicts claims, and the claims that cannot be judged: what they are about was
    removed with age, or is missing as the log itself tells."""
    known = {(one.group, one.first_index, one.size): one.root for one in roots if one.root}
    begun = {(one.group, one.first_index) for one in roots}
    last, first = last_entries(context), context.listing.first_entries
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
        elif claim.last < first.get(claim.group, 0) or not (
            claim.is_kept or context.listing.holds(claim.group, claim.last)
        ):
            yield claim
            continue
        elif (claim.group, claim.first_index) in begun:
            told = f"a tree without entry {claim.last}"
        else:
            told = "no tree that begins there"
        yield finding(
            kind,
            cluster=context.cluster,
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


def judged_claims(
    context: Context, kept: Sequence[Head], claims: Iterable[Claim], roots: Collection[Place]
) -> tuple[list[Finding], list[Claim]]:
    """What `judge_claims` and `not_proved` find, and the claims that cannot be judged."""
    judged = list(judge_claims(context, claims, roots))
    old = [one for one in judged if isinstance(one, Claim)]
    found = [one for one in judged if isinstance(one, Finding)]
    return [*found, *not_proved(context, kept, old)], old


def not_proved(context: Context, kept: Sequence[Head], old: Collection[Claim]) -> Iterator[Finding]:
    """The groups of which heads were kept, but only of entries that retention has removed: nothing
    proves what follows them."""
    for group in sorted({head.group for head in kept}):
        claims = [_claim_of_kept(head) for head in kept if head.group == group]
        if all(claim in old for claim in claims):
            yield finding(
                "not_audited",
                cluster=context.cluster,
                group=group,
                index=max(claim.last for claim in claims),
                expected="a kept head of an entry that the archive still has",
                found=f"heads of entries before {context.listing.first_entries.get(group, 0)}",
            )


def told_heads(kept: Sequence[Head], old: Collection[Claim], roots: Collection[Place]) -> str:
    """A line of the summary; `old` are claims of entries that retention has removed."""
    count = sum(claim.is_kept for claim in old)
    proved = [head for head in kept if _claim_of_kept(head) not in old]
    if not any(one.root for one in roots):
        return "the log has no hash tree: a release before heads wrote it"
    if not kept:
        return "none was given (--expect): anyone who can write to the store could have written all"
    if not proved:
        return f"all {count} that were kept are older than the archive, and prove nothing of it"
    newest = max(proved, key=lambda head: head.time_ms)
    last = newest.first_index + newest.size - 1
    told = f"the log up to entry {last:,} is the one of {len(proved)} heads that were kept"
    return f"{told}; {count} more are older than the archive" if count else told


def claims_of(context: Context, kept: Iterable[Head]) -> tuple[list[Claim], list[Finding]]:
    """What names a tree: kept heads, states and heads in the store; and what is wrong with
    those."""
    claims = [*map(_claim_of_kept, kept), *_claims_of_states(context)]
    return claims, list(_of_stored_heads(context, claims))


def places_asked(context: Context, claims: Iterable[Claim]) -> set[int]:
    """The entries at which roots are needed."""
    asked = {claim.last for claim in claims}
    for overlap in context.listing.overlaps:
        asked |= {overlap.first - 1, overlap.last}
    return asked


# -- what names a tree -----------------------------------------------------------------------


def kept_in(context: Context) -> list[Head]:
    """The heads of `--expect`. Raises `NotRun`."""
    heads, key = kept_heads(context.options.expect, context.options.key)
    context.notes["trusted_key"] = key
    for head in heads:
        if head.cluster != f"streamd/{context.cluster}":
            raise NotRun(f"--expect: a head is of {head.cluster}, the audit of {context.cluster}")
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
            keys = _keys_known(context, named)
            head = stored_head(content, named, context.cluster, context.notes["trusted_key"], keys)
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


def _keys_known(context: Context, head: HeadName) -> dict[bytes, int]:
    """The public keys of nodes when a head was signed, by later states; none without one."""
    return {
        key.public_key: key.node_id
        for state, header in headers_of(context).items()
        if state.group == head.group and state.index >= head.index
        for key in header.log_keys
    }


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
        part = Part(named.group, named.first, named.last, name)
    except (ObjectMissing, Damaged):
        return None
    problem = None
    if tree is not None:
        try:
            entries = read_entries(content, first_index=tree.begin)
            part = part_of(part, tree, entries, places)
        except Damaged as damaged:
            problem = damaged.detail
    return named.group, named.first, name, log_trees.encode(part), problem


def _trees(context: Context, places: set[int]) -> tuple[list[Place], list[Finding]]:
    """What `log_trees.follow` makes of the log, and what is wrong with segments by themselves."""
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
    return [log_trees.decode_place(row["body"]) for row in rows], broken


def odd_trees(context: Context, roots: Iterable[Place]) -> Iterator[Finding]:
    """The segments that `log_trees.follow` has found."""
    for one in roots:
        if one.root is None:
            index = one.first_index + one.size
            told = "it names another tree than the entries before it have, or none"
            yield _differs(context, one.group, index, one.object, told)


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
