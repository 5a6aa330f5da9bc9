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
from streamd_audit.tree_claims import Claim, claims_of


def tree_job(context: Context) -> Judged:
    """The trees of all segments, and whatever names one."""
    kept, claims, wrong = claims_of(context)
    trees = account_of(context).trees
    roots = [place for place, _ in trees]
    broken = [_differs(context, place, told) for place, told in trees if told is not None]
    judged = list(judge_claims(context.cluster, claims, roots, last_entries(context)))
    found = [*wrong, *broken, *(one for one in judged if isinstance(one, Finding))]
    unknown = [one for one in judged if isinstance(one, Claim)]

    def facts() -> Mapping[str, Any]:
        proved = proved_entries(kept, roots)
        return {
            "heads": told_heads(kept, unknown, roots, proved),
            "head_count": len(kept),
            "proved_entries": proved,
        }

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


def told_heads(
    kept: Sequence[Head], unknown: Sequence[Claim], roots: Collection[Place], proved: int
) -> str:
    """A line of the summary."""
    if not any(one.root for one in roots):
        told = "the log has no hash tree: a release before heads wrote it"
    elif not kept:
        told = "none was given (--expect): anyone who can write to the store could have written all"
    else:
        newest = max(kept, key=lambda head: head.time_ms)
        last = newest.first_index + newest.size - 1
        told = (
            f"the log up to entry {last:,} is the one of {len(kept)} heads that were kept, "
            f"which prove {proved:,} entries"
        )
    old = sum(not claim.object for claim in unknown)
    return f"{told}; {old} of them are older than the archive" if old else told


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
