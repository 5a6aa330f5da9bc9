"""From findings to a verdict: which finding explains which, and a summary to read in ten seconds.

One fault shows in several places: a lost segment leaves a gap in the log, and streams shorter than
their states. `fold` keeps the finding that explains the others. It works on a bounded number of
findings, so it needs no Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from streamd_audit.findings import INFO, KINDS, SEVERITIES, Finding
from streamd_audit.names import ManifestName, PackName, PieceName, SegmentName, parse, split

# A verdict needs no more than this; the Parquet files have all.
MAX_FOLDED = 2_000
# How many places the summary names for each kind.
_SHOWN = 3


@dataclass
class Fault:
    """A finding, and how many findings of which kinds follow from it."""

    finding: Finding
    followers: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Verdict:
    """`listed` are findings that are no faults (`INFO`); `more` were not looked at."""

    faults: Sequence[Fault]
    listed: Sequence[Finding]
    more: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.faults and not self.more


_WHOLE_PACK = frozenset(
    ("pack_missing", "pack_truncated", "pack_replaced", "object_unreadable", "format_unknown")
)
_IN_SLICES = frozenset(kind for kind in KINDS if kind.startswith("slice"))
_PACK_ASIDE = frozenset(("pack_damaged", "pack_footer_damaged", "pack_altered"))
_SEGMENT = frozenset(kind for kind in KINDS if kind.startswith("segment"))
# What a log shows whose last entries are gone.
_LOG_CUT = frozenset(("history_rolled_back", "log_end_missing"))
_LOG_LOST = _SEGMENT | _LOG_CUT | {
    "log_gap", "chain_broken", "entry_damaged", "index_gap", "object_unreadable",
    "format_unknown",
}  # fmt: skip
_IN_LOG = frozenset(("history_changed", "term_wrong", "leaders_disagree", "stamp_back"))
_STATE_LOST = frozenset(kind for kind in KINDS if kind.startswith(("manifest_", "piece_"))) | {
    "row_damaged"
}
# What the log itself shows of an append, at its index.
_IN_APPENDS = frozenset(
    (
        "append_after_close", "producer_gap", "producer_repeated", "seq_back", "refused_wrongly",
        "taken_wrongly",
    )
)  # fmt: skip
_MODELLED = _IN_APPENDS | {
    "stream_lost", "stream_unknown", "tail_differs", "closed_differs", "producer_differs",
    "trim_lost", "fork_moved", "expiry_lost", "settings_differ", "cold_differs",
}  # fmt: skip
# What is found by comparing with where the log leads to, and may leave totals wrong.
_COUNTED = _MODELLED | {
    "bytes_differ", "copies_differ", "removal_wrong", "slice_contradicts_log",
    "slice_cuts_append", "slice_not_in_log", "slice_gap", "slice_overlap", "live_lost",
    "live_differs", "live_tail_differs", "live_state_differs", "bucket_differs", "counts_differ",
}  # fmt: skip
# Rows that other rows of the same state determine.
_DETERMINED = frozenset(("counts_differ", "due_differs", "blob_differs"))
# What other entries than the ones that were archived lead to, whatever shows them.
_OF_TREE = frozenset(("tree_differs", "head_differs"))
_BY_LOG = _COUNTED | _DETERMINED | {
    "token_differs", "limits_differ", "operation_differs", "subscription_differs",
    "session_differs", "header_differs", "state_stale",
}  # fmt: skip
# So many faults in one state are one: it is another state.
_OTHER_STATE = 20
# An object whose digest is wrong, if nothing else is.
_ALTERED = frozenset(("segment_altered", "manifest_altered", "piece_altered", "end_altered"))
# What a state that cannot be read seems to have lost.
_ORPHANS = frozenset(("pack_orphan", "piece_orphan"))
# What a log whose chain was recomputed shows.
_OFF_LOG = frozenset(("manifest_off_log", "end_off_log"))


def fold(findings: Iterable[Finding], more: int = 0) -> Verdict:
    """Each fault once, the worst first."""
    faults: list[Fault] = []
    listed: list[Finding] = []
    ordered = sorted(set(findings), key=_order)
    other = _other_states(ordered)
    for found in ordered:
        for fault in faults:
            if _explains(fault.finding, found) or (
                found.object in other and fault.finding.object == found.object
            ):
                fault.followers[found.kind] += 1
                break
        else:
            if found.severity == INFO:
                listed.append(found)
            else:
                faults.append(Fault(found))
    faults.sort(key=lambda fault: (SEVERITIES.index(fault.finding.severity), _order(fault.finding)))
    return Verdict(faults, listed, more)


def _other_states(findings: Iterable[Finding]) -> set[str | None]:
    """The manifests of states that differ from the log in many ways."""
    counts = Counter(
        found.object
        for found in findings
        if found.kind in _BY_LOG and isinstance(_parsed(found), ManifestName)
    )
    return {name for name, count in counts.items() if count > _OTHER_STATE}


def _order(found: Finding) -> tuple[Any, ...]:
    """Findings that may explain others come before them."""
    return (
        rank(found),
        found.group or 0,
        -1 if found.index is None else found.index,
        found.object or "",
        found.stream or "",
        -1 if found.stream_id is None else found.stream_id,
        found.offset or "",
        found.kind,
        found.expected or "",
        found.found or "",
    )


_RANKS: tuple[frozenset[str], ...] = (
    _WHOLE_PACK,
    frozenset(("slices_swapped",)),
    frozenset(("slice_damaged", "slice_altered", "slice_misplaced")),
    _PACK_ASIDE,
    _SEGMENT - _ALTERED,
    _LOG_LOST,
    _IN_LOG,
    frozenset(("manifest_stale", "manifest_foreign")),
    _STATE_LOST - _OFF_LOG - _ALTERED,
    _ALTERED,
    frozenset(("state_stale", "header_differs")),
    _IN_APPENDS,
    frozenset(("slice_contradicts_log", "bytes_differ", "copies_differ")),
    _MODELLED,
    _OFF_LOG,
    frozenset(("slice_overlap",)),
)


_RANK_OF = {kind: number for number, kinds in reversed([*enumerate(_RANKS)]) for kind in kinds}


def rank(found: Finding) -> int:
    """A finding that may explain others has a lower rank; one that is not a fault the highest."""
    if found.severity == INFO:
        return len(_RANKS) + 2
    if found.kind == "cold_differs" or _is_unknown_part(found):
        return len(_RANKS) + 1
    return _RANK_OF.get(found.kind, len(_RANKS))


def _explains(first: Finding, later: Finding) -> bool:
    """Whether `later` is there because of `first`."""
    if _is_unknown_part(first):
        return False
    is_compared = first.kind in _BY_LOG and isinstance(_parsed(first), ManifestName)
    if first.object is not None and first.object == later.object and not is_compared:
        return _explains_in_object(first.kind, later.kind)
    if first.group is not None and _group(later) not in (None, first.group):
        return False
    if later.kind == "subscription_differs" and first.kind in _COUNTED:
        # Wakes follow from what streams hold, and their events give other subscriptions work.
        return True
    if later.kind in _OF_TREE:
        # Other entries have another tree.
        return _of_log(first) or first.kind in _BY_LOG | _OFF_LOG | _OF_TREE
    if _of_log(first):
        return _explained_by_log(first, later)
    if first.kind in _STATE_LOST:
        return _explained_by_state(first, later)
    if first.kind in ("slice_contradicts_log", "bytes_differ", "copies_differ"):
        if later.kind in _OFF_LOG:
            return True
        return _is_stream(first, later) and later.kind in _BY_LOG
    if first.kind in _MODELLED:
        return _explained_by_stream(first, later)
    if first.kind in _IN_SLICES and _is_stream(first, later):
        return later.kind in ("slice_gap", "slice_overlap", "cold_differs", "live_differs")
    if not _may_be_of_one_state(first, later):
        return False
    if first.kind == later.kind == "blob_differs":
        return (first.expected or "").partition(":")[0] == (later.expected or "").partition(":")[0]
    return later.kind in _DETERMINED and first.kind in _COUNTED


def _is_unknown_part(found: Finding) -> bool:
    """Whether only a part of an object is unknown, which hides nothing else."""
    is_part = found.index is not None or found.stream_id is not None
    return found.kind == "format_unknown" and is_part


def _explained_by_stream(first: Finding, later: Finding) -> bool:
    """By how a state differs from the log in one stream."""
    if _is_stream(first, later):
        return later.kind in _BY_LOG
    if not _may_be_of_one_state(first, later):
        return False
    if later.kind == "bucket_differs":
        # The bucket counts its streams and their bytes.
        bucket = (first.stream or "").partition("/")[0]
        return (later.expected or "").startswith(f"bucket {bucket}:")
    return later.kind in _DETERMINED


def _explained_by_state(first: Finding, later: Finding) -> bool:
    """By a state, or a row of it, that cannot be read: all that was to be compared with it, or
    found through it."""
    if not _may_be_of_one_state(first, later):
        return later.kind in _ORPHANS
    if first.kind == "row_damaged" and first.stream is not None:
        return _is_stream(first, later) or later.kind in _DETERMINED | {"bucket_differs"}
    return later.kind in _STATE_LOST | _BY_LOG | _ORPHANS | {"manifest_off_log", "not_audited"}


def _may_be_of_one_state(first: Finding, later: Finding) -> bool:
    one, other = _state(first), _state(later)
    return one is None or other is None or one == other


def _state(found: Finding) -> int | None:
    """The entry of the state that a finding is about, by its manifest or a piece, or else by its
    index; that of an append is the log's."""
    named = _parsed(found)
    if isinstance(named, ManifestName | PieceName):
        return named.index
    return None if found.kind in _IN_APPENDS | _IN_SLICES else found.index


def _explains_in_object(first: str, later: str) -> bool:
    if first in _WHOLE_PACK:
        return later in _IN_SLICES | _PACK_ASIDE | _WHOLE_PACK
    if first == "slices_swapped":
        return later in _IN_SLICES | _PACK_ASIDE
    if first in _IN_SLICES:
        if (first, later) == ("slice_overlap", "slice_cuts_append"):
            return True  # a slice that begins too early, in the middle of an append
        return later in _PACK_ASIDE or (first == later == "slice_contradicts_log")
    if first in _PACK_ASIDE:
        return later in _PACK_ASIDE
    return first in _LOG_LOST | _STATE_LOST | {"end_damaged"}


def _group(found: Finding) -> int | None:
    """The group of a finding; an object's name shows it too."""
    return getattr(_parsed(found), "group", None) if found.group is None else found.group


def _of_log(found: Finding) -> bool:
    if found.kind in ("object_unreadable", "format_unknown"):
        return isinstance(_parsed(found), SegmentName) and not _is_unknown_part(found)
    return found.kind in _LOG_LOST | _IN_LOG


def _explained_by_log(first: Finding, later: Finding) -> bool:
    start, end = _entries(first)
    if first.kind in _LOG_CUT and later.kind in _LOG_CUT | {"pack_orphan"}:
        return True
    if later.kind in _SEGMENT:
        return False  # damage of its own
    if later.kind in _LOG_LOST | _IN_LOG:
        # A segment that cannot be used leaves a gap just where it was.
        at = later.index if later.index is not None else _entries(later)[0]
        return start <= at <= end + 1
    if first.kind in _IN_LOG:
        return later.kind in _OFF_LOG
    return later.kind in _BY_LOG | _OFF_LOG | {"not_audited"}


def _entries(found: Finding) -> tuple[int, int]:
    """Which entries of the log a finding is about: those of its segment, or one."""
    named = _parsed(found)
    if isinstance(named, SegmentName) and found.kind in _SEGMENT | _WHOLE_PACK:
        return named.first, named.last
    index = found.index or 0
    return index, index


def _parsed(found: Finding) -> object:
    return parse(split(found.object)[1]) if found.object else None


def _is_stream(first: Finding, later: Finding) -> bool:
    if first.stream_id is not None and later.stream_id is not None:
        return first.stream_id == later.stream_id
    return first.stream is not None and first.stream == later.stream


# -- what people and scripts read --------------------------------------------------------------


def as_json(verdict: Verdict, about: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """``findings.json``: what was audited, in numbers, and each fault."""
    return {
        **about,
        "verdict": "clean" if verdict.is_clean else "findings",
        "facts": dict(facts),
        "findings": [
            {**asdict(fault.finding), "followers": dict(fault.followers)}
            for fault in verdict.faults
        ],
        "listed": [asdict(found) for found in verdict.listed],
        "more": verdict.more,
    }


def summary(verdict: Verdict, about: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """A screen at most: the verdict, what it is about, and the worst faults with their causes."""
    count = len(verdict.faults) + verdict.more
    told = "CLEAN" if verdict.is_clean else f"{count} FINDING{'S' * (count != 1)}"
    lines = [f"{told}  {about['store']}  cluster {about['cluster']}"]
    # First what is proved, and what an operator must not believe proved.
    for name, told in facts.items():
        if isinstance(told, list):
            lines += [f"  {name:<12} {one}" for one in told]
    lines += [f"  {name:<12} {text}" for name, text in facts.items() if isinstance(text, str)]
    by_kind: dict[str, list[Fault]] = {}
    for fault in verdict.faults:
        by_kind.setdefault(fault.finding.kind, []).append(fault)
    for kind, faults in by_kind.items():
        lines += ["", *_of_kind(kind, faults)]
    if verdict.more:
        lines += ["", f"  … and {verdict.more:,} more, in the Parquet files"]
    if verdict.listed:
        kinds = Counter(found.kind for found in verdict.listed)
        told = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        lines += ["", f"  listed, no faults: {told}"]
    return "\n".join(lines)


def _of_kind(kind: str, faults: Sequence[Fault]) -> list[str]:
    first = faults[0].finding
    times = f" ×{len(faults):,}" if len(faults) > 1 else ""
    lines = [f"  {first.severity}  {kind}{times}: {KINDS[kind].title}"]
    for fault in faults[:_SHOWN]:
        lines.append(f"    at       {place(fault.finding)}")
        if fault.finding.expected is not None:
            lines.append(f"    expected {_short(fault.finding.expected)}")
        if fault.finding.found is not None:
            lines.append(f"    found    {_short(fault.finding.found)}")
        if fault.followers:
            told = ", ".join(f"{number} {name}" for name, number in fault.followers.items())
            lines.append(f"    with it  {told}")
    if len(faults) > _SHOWN:
        lines.append(f"    … and {len(faults) - _SHOWN:,} more")
    causes = dict.fromkeys(fault.finding.cause for fault in faults)
    lines.append(f"    cause    {_cause(kind, faults) or '; '.join(list(causes)[:_SHOWN])}")
    return lines


def _cause(kind: str, faults: Sequence[Fault]) -> str | None:
    """One cause for several faults of a kind, where their places tell of one."""
    if len(faults) < 3:
        return None
    names = [_parsed(fault.finding) for fault in faults]
    if kind == "pack_missing" and all(isinstance(name, PackName) for name in names):
        folders = {split(fault.finding.object or "")[0] for fault in faults}
        if len(folders) == 1:
            return f"many packs of folder {folders.pop()} are gone: deleted together, or expired"
    indexes = {fault.finding.index for fault in faults}
    if kind in _BY_LOG and len(indexes) == 1 and None not in indexes:
        return f"entry {indexes.pop()} of the log, which all of them name"
    return None


def place(found: Finding) -> str:
    """Where a finding is, in a line."""
    parts = []
    if found.stream is not None:
        parts.append(found.stream)
    elif found.stream_id is not None:
        parts.append(f"stream id {found.stream_id}")
    if found.offset is not None:
        parts.append(f"offset {found.offset}")
    if found.index is not None:
        parts.append(f"entry {found.index:,}")
    if found.object is not None:
        parts.append(found.object)
    return ", ".join(parts) or f"group {found.group}"


def _short(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:157]}…"
