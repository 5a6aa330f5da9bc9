"""The final log of a stream, and the place of each append in it."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter

import msgspec

from tests.jepsen_like.findings import Anomaly, Finding, MalformedHistory, shown
from tests.jepsen_like.history import Operation

_EARLIEST = 0
# Stands for unseen bytes in a reconstructed log; no byte is this character.
_UNSEEN = "\ue000"
_RANK = {"ok": 0, "unknown": 1, "fail": 2}


class Offsets:
    """The byte positions that offsets name: what follows the last underscore."""

    def __init__(self) -> None:
        self._positions = {"-1": 0}
        self._tokens: dict[int, str] = {}
        # Offsets that name one position differently.
        self.conflicts: list[tuple[str, str]] = []

    def position(self, token: str) -> int:
        """The byte position, or -1 when the text is not an offset."""
        known = self._positions.get(token)
        if known is not None:
            return known
        digits = token.rpartition("_")[2]
        position = int(digits) if digits.isascii() and digits.isdigit() else -1
        first = self._tokens.setdefault(position, token)
        if first != token and position >= 0:
            self.conflicts.append((first, token))
        self._positions[token] = position
        return position


@dataclass
class Life:
    """One incarnation of a stream: its operations by what they are, and its log."""

    stream: str
    incarnation: int
    creates: list[Operation] = field(default_factory=list)
    closes: list[Operation] = field(default_factory=list)
    deletes: list[Operation] = field(default_factory=list)
    reads: list[Operation] = field(default_factory=list)
    heads: list[Operation] = field(default_factory=list)
    finals: list[Operation] = field(default_factory=list)
    # One operation for each payload, merged with its retries.
    appends: dict[str, Operation] = field(default_factory=dict)
    retries: dict[str, list[Operation]] = field(default_factory=dict)
    # Every refused operation, of any kind and before merging.
    refused: list[Operation] = field(default_factory=list)
    # The lengths of the payloads, longest first.
    lengths: list[int] = field(default_factory=list)
    offsets: Offsets = field(default_factory=Offsets)
    findings: list[Finding] = field(default_factory=list)

    # The earliest moment at which the path's next life can have begun.
    next_begins_ns: int = sys.maxsize
    content: str = ""
    is_final: bool = False
    # Where each append that took effect begins, and the same in the order of the log.
    placed: dict[str, int] = field(default_factory=dict)
    order: list[tuple[int, Operation]] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=list)

    def find(self, anomaly: Anomaly, message: str, *operations: Operation) -> None:
        self.findings.append(Finding(anomaly, self.stream, self.incarnation, message, operations))

    def created_ns(self) -> int:
        """The earliest moment at which this incarnation can have begun."""
        made = [c.invoked_ns for c in self.creates if c.outcome != "fail" and not c.duplicate]
        return min(made, default=_EARLIEST)

    def may_have_strayed(self, append: Operation) -> bool:
        """Whether it was still under way when the path may have begun its next life."""
        return append.returned_ns > self.next_begins_ns

    def boundary_before(self, position: int) -> int:
        """The last boundary between records at or before a position."""
        return self.boundaries[max(0, bisect_right(self.boundaries, position) - 1)]


def gather(stream: str, incarnation: int, operations: list[Operation]) -> Life:
    """Sorts operations by kind and merges retries. Raises MalformedHistory."""
    life = Life(stream, incarnation)
    lists = {
        "create": life.creates,
        "close": life.closes,
        "delete": life.deletes,
        "read": life.reads,
        "deliver": life.reads,
        "head": life.heads,
        "final_read": life.finals,
    }
    appends, retries = life.appends, life.retries
    for operation in operations:
        kind = operation.kind
        if operation.outcome == "fail":
            life.refused.append(operation)
        if kind != "append":
            lists[kind].append(operation)
            if kind != "create" or not operation.payload or operation.duplicate:
                continue
        payload = operation.payload
        if not payload:
            raise MalformedHistory(f"{operation.client} appended nothing (a bare close is a close)")
        first = appends.setdefault(payload, operation)
        if first is not operation:
            if operation.stamp is None or operation.stamp != first.stamp:
                raise MalformedHistory(f"{shown(payload)} was sent twice, and not as a retry")
            retries.setdefault(payload, [first]).append(operation)
    for payload, attempts in retries.items():
        appends[payload] = _merge(attempts)
    life.lengths = sorted({len(payload) for payload in appends}, reverse=True)
    return life


def _merge(attempts: list[Operation]) -> Operation:
    """Merge the attempts of one append into one operation."""
    best = min(attempts, key=lambda attempt: (_RANK[attempt.outcome], attempt.duplicate))
    able = [a.invoked_ns for a in attempts if a.outcome != "fail"] or [best.invoked_ns]
    acknowledged = [a.returned_ns for a in attempts if a.outcome == "ok"] or [best.returned_ns]
    return msgspec.structs.replace(best, invoked_ns=min(able), returned_ns=min(acknowledged))


def settle_content(life: Life, others: list[Life]) -> None:
    """Determine the log: by the final reads if there are any, otherwise by everything seen of
    it."""
    finals = [final for final in life.finals if final.outcome == "ok"]
    if not finals:
        # Appends to other lives may have strayed into this one.
        most = sum(len(payload) for one in (life, *others) for payload in one.appends)
        life.content = _piece_together(life, most)
        return
    votes = Counter(final.data for final in finals)
    life.content = max(votes, key=lambda data: (votes[data], len(data)))
    life.is_final = True
    reference = next(final for final in finals if final.data == life.content)
    for final in finals:
        told = life.offsets.position(final.next_offset)
        if told != len(final.data):
            message = f"{len(final.data)} bytes, and told to go on at {final.next_offset!r}"
            life.find(Anomaly.INCONSISTENT_OFFSETS, message, final)
        if final.data != life.content:
            at = common_prefix(final.data, life.content)
            message = f"{final.node or final.client} has another log from byte {at} on"
            life.find(Anomaly.DIVERGED_REPLICA, message, final, reference)


def _piece_together(life: Life, most: int) -> str:
    """The seen parts of a log of at most `most` bytes."""
    position = life.offsets.position
    seen = [
        (position(append.next_offset), append.payload)
        for append in life.appends.values()
        if append.outcome == "ok" and not append.duplicate and not life.may_have_strayed(append)
    ]
    seen += [(position(r.next_offset), r.data) for r in life.reads if r.outcome == "ok"]
    seen += [(position(head.next_offset), "") for head in life.heads if head.outcome == "ok"]
    pieces, end = [], 0
    for start, data in sorted((end - len(data), data) for end, data in seen if end <= most):
        if start > end:
            pieces.append(_UNSEEN * (start - end))
            end = start
        if start >= 0 and start + len(data) > end:
            pieces.append(data[end - start :])
            end = start + len(data)
    return "".join(pieces)


def common_prefix(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def place_appends(life: Life, others: list[Life]) -> None:
    """Find each append in the log once, and report bytes that should not be there.

    First where the acknowledgements place it, then in the remaining gaps.
    """
    content, placed, position = life.content, life.placed, life.offsets.position
    for payload, append in life.appends.items():
        if append.outcome == "ok" and not append.duplicate:
            start = position(append.next_offset) - len(payload)
            if start >= 0 and content.startswith(payload, start):
                placed[payload] = start
    known = sorted(placed.items(), key=itemgetter(1))
    life.order = [(start, life.appends[payload]) for payload, start in known]
    end = 0
    gaps = []
    for payload, start in known:
        if start > end:
            gaps.append((end, start))
        end = start + len(payload)
    if end < len(content):
        gaps.append((end, len(content)))
    found = _Gaps(life, others)
    for gap in gaps:
        found.fill(*gap)
    if gaps:
        life.order.sort(key=itemgetter(0))
    life.boundaries = sorted({0, len(content), *found.boundaries, *placed.values()})
    for payload, append in life.appends.items():
        if payload not in placed and append.outcome == "ok":
            _report_missing(life, append)


def _report_missing(life: Life, append: Operation) -> None:
    if life.is_final:
        life.find(Anomaly.LOST_WRITE, "acknowledged, and not in the final log", append)
    elif not append.duplicate and not life.may_have_strayed(append):
        message = "acknowledged at an offset where something else was read"
        life.find(Anomaly.INCONSISTENT_OFFSETS, message, append)


class _Gaps:
    """Recognises appends in those parts of the log that no acknowledgement explains."""

    def __init__(self, life: Life, others: list[Life]) -> None:
        self.life = life
        self.boundaries: list[int] = []
        self._others = others

    def fill(self, start: int, end: int) -> None:
        content = self.life.content
        unexplained = start
        while start < end:
            match = self._recognise(start, end)
            if match is None and content[start] != _UNSEEN:
                start += 1
                continue
            self._report_phantom(unexplained, start)
            self.boundaries.append(start)
            if match is None:
                start += 1
            else:
                owner, append = match
                self._settle(owner, append, start)
                start += len(append.payload)
            unexplained = start
        self._report_phantom(unexplained, end)

    def _recognise(self, start: int, end: int) -> tuple[Life, Operation] | None:
        for life in (self.life, *self._others):
            append = append_at(life, self.life.content, start, end)
            if append is not None:
                return life, append
        return None

    def _settle(self, owner: Life, append: Operation, start: int) -> None:
        life, payload = self.life, append.payload
        end = start + len(payload)
        if payload in life.placed:
            message = f"in the log at byte {life.placed[payload]} and again at {start}"
            life.find(Anomaly.DUPLICATE, message, append)
            return
        if owner is not life:
            if not self._may_have_strayed(owner, append):
                message = f"byte {start} holds an append to incarnation {owner.incarnation}"
                life.find(Anomaly.RESURRECTED_DATA, message, append)
                return
            life.appends[payload] = owner.appends.pop(payload)
            life.lengths = sorted({*life.lengths, len(payload)}, reverse=True)
        life.placed[payload] = start
        life.order.append((start, append))
        acknowledged = life.offsets.position(append.next_offset)
        if append.outcome == "fail":
            message = f"refused, and yet in the log at byte {start}"
            life.find(Anomaly.ABORTED_READ, message, append)
        elif append.outcome == "ok" and is_wrong_end(append, acknowledged, end):
            message = f"acknowledged up to {append.next_offset}, and found at bytes {start}..{end}"
            life.find(Anomaly.INCONSISTENT_OFFSETS, message, append)

    def _may_have_strayed(self, owner: Life, append: Operation) -> bool:
        """Whether it was still under way when its path began a later life."""
        later = self.life.incarnation > owner.incarnation
        under_way = append.returned_ns > self.life.created_ns() or append.outcome == "unknown"
        return later and under_way

    def _report_phantom(self, start: int, end: int) -> None:
        if start < end:
            self.boundaries.append(start)
            bytes_found = shown(self.life.content[start:end])
            message = f"bytes {start}..{end} were appended by nobody: {bytes_found}"
            self.life.find(Anomaly.PHANTOM_WRITE, message)


def is_wrong_end(append: Operation, acknowledged: int, end: int) -> bool:
    """A retry may be answered with a later tail than the end of its append, never an earlier
    one."""
    return acknowledged < end if append.duplicate else acknowledged != end


def append_at(life: Life, text: str, start: int, end: int) -> Operation | None:
    """The append whose payload begins at `start` of a text and ends at `end` or before."""
    for length in life.lengths:
        if start + length <= end:
            append = life.appends.get(text[start : start + length])
            if append is not None:
                return append
    return None
