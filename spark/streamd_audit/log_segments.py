"""Segments of the log that are damaged, or contradict one another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from streamd_audit.context import Context
from streamd_audit.errors import Damaged, ObjectMissing
from streamd_audit.findings import Finding, damage_kind, finding
from streamd_audit.framing import check_digest
from streamd_audit.log_overlaps import Problem
from streamd_audit.names import SegmentName, parse, split
from streamd_audit.replay.whole import account_of
from streamd_audit.segments import check_cluster

# How many segments are read once more, one by one, to find out what is wrong with them.
_MOST_AGAIN = 100
# Of several kinds of damage to one object, the first of these says most.
_WORST_FIRST = (
    "unreadable", "unknown_version", "too_short", "too_long", "wrong_magic", "head_crc", "body_crc",
    "other_cluster", "misnamed", "contradiction", "bad_zstd", "too_large", "chain", "bad_msgpack",
    "unknown_field", "name_digest",
)  # fmt: skip
# Damage of an entry, in a segment that may be whole.
_OF_ENTRIES = frozenset(("chain", "bad_msgpack", "unknown_field"))
_KINDS = {"bad_msgpack": "entry_damaged", "contradiction": "index_gap"}


def findings_of_segments(
    context: Context, disagreements: Sequence[Finding], problems: Sequence[Problem]
) -> list[Finding]:
    """Damaged segments and entries, and segments that contradict one another: `disagreements`, and
    `problems` of segments that others cover, which are not read with the log."""
    account = account_of(context)
    found = list(_told_by_problems(context.cluster, account.problems))
    named = {one.object for one in found}
    for group, index, name, expected, other in account.joints:
        if name not in named:
            found.append(
                finding(
                    "chain_broken",
                    cluster=context.cluster,
                    group=group,
                    index=index,
                    object=name,
                    expected=f"after chain {expected}",
                    found=f"after {other}",
                )
            )
    read = cache(lambda name: _damage_of_whole(context, name))
    covered = [one for one in problems if one[2] not in named]
    found += [*_told_by_problems(context.cluster, covered), *disagreements]
    told = []
    again: set[str | None] = set()
    for one in found:
        # A changed byte with a recomputed CRC breaks the chain as a forged entry does; only the
        # digest in the name tells them apart.
        is_vague = one.kind in ("chain_broken", "segments_disagree")
        if is_vague and (len(again) < _MOST_AGAIN or one.object in again):
            again.add(one.object)
            one = read(one.object) or one
        told.append(one)
    return told


def _damage_of_whole(context: Context, name: str) -> Finding | None:
    try:
        content = context.store.read(name)
        check_cluster(content, context.cluster)
        check_digest(name, content)
    except ObjectMissing:
        return None  # merged since
    except Damaged as damaged:
        named = parse(split(name)[1])
        return finding(
            damage_kind("segment", damaged.kind),
            cluster=context.cluster,
            group=named.group if isinstance(named, SegmentName) else None,
            object=name,
            found=damaged.detail,
        )
    return None


def _told_by_problems(cluster: str, problems: Iterable[Problem]) -> Iterator[Finding]:
    """One finding for each damaged object, and for each damaged entry in a whole one."""
    by_object: dict[str, list[Problem]] = {}
    for problem in problems:
        by_object.setdefault(problem[2], []).append(problem)
    for name, told in by_object.items():
        whole = [one for one in told if _damage(one) not in _OF_ENTRIES]
        for group, index, _, text in sorted(whole, key=_rank)[:1] or told:
            damage, _, detail = text.partition(": ")
            yield finding(
                _KINDS.get(damage) or damage_kind("segment", damage),
                cluster=cluster,
                group=group,
                index=index,
                object=name,
                found=detail,
            )


def _damage(problem: Problem) -> str:
    return problem[3].partition(": ")[0]


def _rank(problem: Problem) -> int:
    damage = _damage(problem)
    return _WORST_FIRST.index(damage) if damage in _WORST_FIRST else len(_WORST_FIRST)
