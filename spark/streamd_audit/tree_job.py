"""``audit_tree``: whether the log is the one of which heads were signed.

The checksums of a store do not find somebody who writes all of it again. A head that was kept
elsewhere does: its root is that of one log only, up to its last entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from streamd_audit.context import Context, Judged
from streamd_audit.findings import Finding, finding
from streamd_audit.log_ends import last_entries
from streamd_audit.log_trees import Place
from streamd_audit.proof import Head
from streamd_audit.replay.whole import account_of
from streamd_audit.runner import run
from streamd_audit.tree_claims import Claim, claim_of_kept, claims_of


def tree_job(context: Context) -> Judged:
    """The trees of all segments, and whatever names one."""
    kept, claims, wrong = claims_of(context)
    trees = account_of(context).trees
    roots = [place for place, _ in trees]
    broken = [_differs(context, place, told) for place, told in trees if told is not None]
    told, old = judged_claims(context, kept, claims, roots)
    context.notes["proved_heads"] = [head for head in kept if claim_of_kept(head) not in old]
    found = [*wrong, *broken, *told]

    def facts() -> Mapping[str, Any]:
        proved = proved_entries(kept, roots)
        return {
            "heads": told_heads(kept, old, roots, proved),
            "head_count": len(kept),
            "proved_entries": proved,
        }

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
        claims = [claim_of_kept(head) for head in kept if head.group == group]
        if all(claim in old for claim in claims):
            yield finding(
                "not_audited",
                cluster=context.cluster,
                group=group,
                index=max(claim.last for claim in claims),
                expected="a kept head of an entry that the archive still has",
                found=f"heads of entries before {context.listing.first_entries.get(group, 0)}",
            )


def told_heads(
    kept: Sequence[Head], old: Collection[Claim], roots: Collection[Place], proved_count: int
) -> str:
    """A line of the summary; `old` are claims of entries that retention has removed."""
    count = sum(claim.is_kept for claim in old)
    proved = [head for head in kept if claim_of_kept(head) not in old]
    if not any(one.root for one in roots):
        return "the log has no hash tree: a release before heads wrote it"
    if not kept:
        return "none was given (--expect): anyone who can write to the store could have written all"
    if not proved:
        return f"all {count} that were kept are older than the archive, and prove nothing of it"
    newest = max(proved, key=lambda head: head.time_ms)
    last = newest.first_index + newest.size - 1
    told = (
        f"the log up to entry {last:,} is the one of {len(proved)} heads that were kept, "
        f"which prove {proved_count:,} entries"
    )
    return f"{told}; {count} more are older than the archive" if count else told


def proved_entries(kept: Iterable[Head], roots: Iterable[Place]) -> int:
    """How many entries of the archive are leaves of a tree that a kept head has signed."""
    signed = {(one.group, one.first_index, one.size, one.root) for one in kept}
    proved: dict[tuple[int, int], int] = {}
    for one in roots:
        if (one.group, one.first_index, one.size, one.root) in signed:
            tree = one.group, one.first_index
            proved[tree] = max(proved.get(tree, 0), one.read)
    return sum(proved.values())


def _differs(context: Context, place: Place, told: str) -> Finding:
    return finding(
        "tree_differs",
        cluster=context.cluster,
        group=place.group,
        index=place.first_index + place.size,
        object=place.object,
        expected="the tree that the log's entries have",
        found=told,
    )
