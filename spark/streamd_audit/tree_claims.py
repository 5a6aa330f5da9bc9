"""What names a tree over the log: heads that were kept, those in the store, and states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamd_audit.context import Context
from streamd_audit.errors import Damaged, ObjectMissing
from streamd_audit.findings import Finding, finding
from streamd_audit.framing import check_digest
from streamd_audit.heads import kept_heads, stored_head
from streamd_audit.names import HeadName, parse, split
from streamd_audit.options import NotRun
from streamd_audit.proof import Head
from streamd_audit.replay.stored import headers_of
from streamd_audit.tree import placed, root_of


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


class Claims(NamedTuple):
    """The heads that were `kept`, all claims, and what is `wrong` with heads in the store."""

    kept: list[Head]
    claims: list[Claim]
    wrong: list[Finding]


def claims_of(context: Context) -> Claims:
    """Everything that names a tree. Raises `NotRun` for kept heads that are none."""

    def look() -> Claims:
        kept = _kept(context)
        claims = [*map(_claim_of_kept, kept), *_claims_of_states(context)]
        wrong = list(_of_stored_heads(context, claims))
        return Claims(kept, claims, wrong)

    return context.shared("claims", look)


def tree_places(context: Context) -> set[int]:
    """The entries as of which a tree's root is asked for, and at which tasks divide it."""
    places = {claim.last for claim in claims_of(context).claims}
    for overlap in context.listing.overlaps:
        places |= {overlap.first - 1, overlap.last}
    return places


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
