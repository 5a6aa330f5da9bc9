"""What clients saw of a stream, compared with its log and with time.

A stream's state only grows: `2 * tail`, one more when it is closed, `_GONE` when it is deleted.
Every operation says "at some moment before I returned the state was at least this" (a floor), or
"at some moment after I was invoked it was at most this" (a ceiling), or both. The history is
linearizable exactly if no ceiling is below a floor that had returned before it was invoked.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from operator import itemgetter

from tests.jepsen_like.content import Life, append_at, common_prefix, is_wrong_end
from tests.jepsen_like.findings import Anomaly, shown
from tests.jepsen_like.history import CLOSED, NOT_FOUND, Operation

_GONE = 1 << 62
_NEVER = sys.maxsize

Bound = tuple[int, int, Operation]


@dataclass
class _Bounds:
    """Floors at their return, ceilings at their invocation: (ns, state, operation)."""

    floors: list[Bound] = field(default_factory=list)
    ceilings: list[Bound] = field(default_factory=list)


def check_observations(life: Life, others: list[Life]) -> None:
    """Reads, heads, closes and deletes, and the order in time of everything."""
    bounds = _Bounds()
    close = _ClosePoint(life)
    _check_deletes(life, bounds)
    _check_appends(life, close, bounds)
    _check_closes(life, close, bounds)
    _check_reads(life, others, close, bounds)
    _check_tails(life, close, bounds)
    _sweep(life, bounds)


def _pinned(bounds: _Bounds, operation: Operation, state: int) -> None:
    bounds.floors.append((operation.returned_ns, state, operation))
    bounds.ceilings.append((operation.invoked_ns, state, operation))


class _ClosePoint:
    """Where the stream was closed, if an answer said that it was."""

    def __init__(self, life: Life) -> None:
        self._life = life
        attempted = [c.invoked_ns for c in life.closes if c.outcome != "fail"]
        attempted += [c.invoked_ns for c in life.creates if _may_close(c) and not c.duplicate]
        attempted += [a.invoked_ns for a in life.appends.values() if _may_close(a)]
        self._attempted_ns = min(attempted, default=_NEVER)
        self.position = self._acknowledged()
        if self.position is None:
            self.position = self._witnessed()

    def could_be_seen_by(self, operation: Operation) -> bool:
        return self._attempted_ns < operation.returned_ns

    def _acknowledged(self) -> int | None:
        life = self._life
        told = [life.offsets.position(c.next_offset) for c in life.closes if c.outcome == "ok"]
        told += [
            len(create.payload)
            for create in life.creates
            if create.closes and create.outcome == "ok" and not create.duplicate
        ]
        for payload, start in life.placed.items():
            append = life.appends[payload]
            if append.closes and append.outcome == "ok":
                told.append(start + len(payload))
        return min(told, default=None)

    def _witnessed(self) -> int | None:
        life = self._life
        if self._attempted_ns == _NEVER:
            return None
        told = [r for r in (*life.reads, *life.heads, *life.finals) if r.closed]
        at = [life.offsets.position(r.next_offset) for r in told if self.could_be_seen_by(r)]
        at = [position for position in at if position >= 0]
        refused = any(a.refusal == CLOSED for a in life.refused if a.kind == "append")
        if len(life.content) in at or (refused and not at):
            return len(life.content)
        return min(at, default=None)


def _may_close(operation: Operation) -> bool:
    return operation.closes and operation.outcome != "fail"


def _check_appends(life: Life, close: _ClosePoint, bounds: _Bounds) -> None:
    floors, ceilings = bounds.floors, bounds.ceilings
    closed_at = _NEVER if close.position is None else close.position
    for start, append in life.order:
        if start >= closed_at:
            message = f"took effect at byte {start}, and the stream was closed at {closed_at}"
            life.find(Anomaly.WRITE_AFTER_CLOSE, message, append)
            continue
        if append.outcome == "fail":
            continue
        ceilings.append((append.invoked_ns, 2 * start, append))
        if append.outcome == "ok":
            state = 2 * (start + len(append.payload)) + append.closes
            floors.append((append.returned_ns, state, append))
    for payload, tries in life.retries.items():
        if payload in life.placed:
            _check_retries(life, tries, life.placed[payload] + len(payload))
    for append in life.refused:
        if append.kind == "append" and append.refusal == CLOSED:
            _check_refused_as_closed(life, append, close, bounds)


def _check_retries(life: Life, tries: list[Operation], end: int) -> None:
    """The first answer names the end of the append; a later one may name a later tail."""
    merged = life.appends[tries[0].payload]
    for append in tries:
        position = life.offsets.position(append.next_offset)
        wrong = append.outcome == "ok" and is_wrong_end(append, position, end)
        if wrong and append.next_offset != merged.next_offset:
            message = f"a retry was told {append.next_offset}, and its append ends at {end}"
            life.find(Anomaly.INCONSISTENT_OFFSETS, message, append)


def _check_refused_as_closed(
    life: Life, append: Operation, close: _ClosePoint, bounds: _Bounds
) -> None:
    if not close.could_be_seen_by(append):
        life.find(Anomaly.PHANTOM_CLOSE, "refused as closed, and nobody had closed", append)
    elif close.position is not None:
        bounds.floors.append((append.returned_ns, 2 * close.position + 1, append))


def _check_closes(life: Life, close: _ClosePoint, bounds: _Bounds) -> None:
    for operation in life.closes:
        if operation.outcome != "ok" or close.position is None:
            continue
        position = life.offsets.position(operation.next_offset)
        if position == close.position:
            _pinned(bounds, operation, 2 * position + 1)
        else:
            message = f"closed at {position}, and at {close.position} as well"
            life.find(Anomaly.INCONSISTENT_CLOSE, message, operation)
    for final in life.finals:
        if final.outcome != "ok" or final.data != life.content:
            continue
        if final.closed and not close.could_be_seen_by(final):
            life.find(Anomaly.PHANTOM_CLOSE, "closed in the end, by nobody", final)
        elif close.position is not None and not final.closed:
            message = f"closed at byte {close.position}, and open in the end"
            life.find(Anomaly.LOST_CLOSE, message, final)
        else:
            _pinned(bounds, final, 2 * len(final.data) + final.closed)


def _check_deletes(life: Life, bounds: _Bounds) -> None:
    deleted_ns = _NEVER
    for delete in life.deletes:
        if delete.outcome == "ok":
            bounds.floors.append((delete.returned_ns, _GONE, delete))
        if delete.outcome != "fail":
            deleted_ns = min(deleted_ns, delete.invoked_ns)
    created = [c.returned_ns for c in life.creates if c.outcome == "ok"]
    created_ns = min(created, default=_NEVER)
    for operation in life.refused:
        if operation.refusal != NOT_FOUND or operation.kind in ("create", "delete"):
            continue
        if created_ns < operation.invoked_ns and operation.returned_ns <= deleted_ns:
            life.find(Anomaly.LOST_STREAM, "not found, and nobody had deleted it", operation)


def _check_reads(life: Life, others: list[Life], close: _ClosePoint, bounds: _Bounds) -> None:
    floors, ceilings = bounds.floors, bounds.ceilings
    content, position = life.content, life.offsets.position
    boundaries = set(life.boundaries) if life.is_final else None
    has_deletes = bool(life.deletes)
    for read in life.reads:
        if read.outcome != "ok":
            continue
        data, end = read.data, position(read.next_offset)
        start = end - len(data) if read.offset == "now" else position(read.offset)
        if start + len(data) != end or start < 0 or not content.startswith(data, start):
            anomaly, message = _classify(life, others, read, start, end)
            life.find(anomaly, message, read)
        elif read.closed:
            _check_closed_answer(life, read, end, close, bounds)
        elif read.up_to_date:
            if boundaries is not None and end not in boundaries:
                life.find(Anomaly.TORN_READ, f"a tail within an append, at byte {end}", read)
                continue
            floors.append((read.returned_ns, 2 * end, read))
            ceilings.append((read.invoked_ns, 2 * end, read))
        else:
            floors.append((read.returned_ns, 2 * end, read))
            if has_deletes:
                ceilings.append((read.invoked_ns, _GONE - 1, read))


def _check_tails(life: Life, close: _ClosePoint, bounds: _Bounds) -> None:
    boundaries = set(life.boundaries) if life.is_final and life.heads else None
    for head in life.heads:
        if head.outcome != "ok":
            continue
        end = life.offsets.position(head.next_offset)
        if end < 0:
            life.find(Anomaly.INCONSISTENT_OFFSETS, "no offset", head)
        elif boundaries is not None and end > len(life.content):
            message = f"a tail of {end}, and the log ends at {len(life.content)}"
            life.find(Anomaly.VANISHED_READ, message, head)
        elif boundaries is not None and end not in boundaries:
            life.find(Anomaly.TORN_READ, f"a tail within an append, at byte {end}", head)
        elif head.closed:
            _check_closed_answer(life, head, end, close, bounds)
        else:
            _pinned(bounds, head, 2 * end)


def _check_closed_answer(
    life: Life, answer: Operation, end: int, close: _ClosePoint, bounds: _Bounds
) -> None:
    if not close.could_be_seen_by(answer):
        life.find(Anomaly.PHANTOM_CLOSE, "told closed, and nobody had closed", answer)
    elif close.position is not None and end != close.position:
        message = f"told closed at {end}, and the stream was closed at {close.position}"
        life.find(Anomaly.INCONSISTENT_CLOSE, message, answer)
    else:
        _pinned(bounds, answer, 2 * end + 1)


def _classify(
    life: Life, others: list[Life], read: Operation, start: int, end: int
) -> tuple[Anomaly, str]:
    """The fault of a read whose bytes are not those of the log at its offset."""
    data, content = read.data, life.content
    if start < 0 or end < 0:
        return Anomaly.INCONSISTENT_OFFSETS, "no offset"
    if not data and start == end:
        return Anomaly.VANISHED_READ, f"the log never reached byte {start}"
    if not data:
        gone = Anomaly.NONMONOTONIC_POLL if end < start else Anomaly.POLL_SKIP
        return gone, f"moved from byte {start} to {end} without data"
    if content.startswith(data, start):
        message = f"{len(data)} bytes from {start} on, and told to go on at {end}"
        return Anomaly.INCONSISTENT_OFFSETS, message
    place = _place_of(life, data, end)
    if place is not None:
        moved = Anomaly.NONMONOTONIC_POLL if place < start else Anomaly.POLL_SKIP
        return moved, f"asked for byte {start}, and given what stands at {place}"
    return _classify_mismatch(life, others, data, start)


def _place_of(life: Life, data: str, end: int) -> int | None:
    """The place of the bytes in the log, if it is where the answer ends or a record begins."""
    candidates = [end - len(data)]
    first = append_at(life, data, 0, len(data))
    if first is not None and first.payload in life.placed:
        candidates.append(life.placed[first.payload])
    for place in candidates:
        if place >= 0 and life.content.startswith(data, place):
            return place
    return None


def _classify_mismatch(
    life: Life, others: list[Life], data: str, start: int
) -> tuple[Anomaly, str]:
    wrong = common_prefix(data, life.content[start : start + len(data)])
    boundary = max(start, life.boundary_before(start + wrong)) - start
    at = f"at byte {start + boundary}"
    append = append_at(life, data, boundary, len(data))
    if append is not None:
        name = shown(append.payload)
        if append.payload in life.placed:
            message = f"saw {name} {at}; it stands at {life.placed[append.payload]}"
            return Anomaly.INCONSISTENT_OFFSETS, message
        if append.outcome == "fail":
            return Anomaly.ABORTED_READ, f"saw {name} {at}, which was refused"
        return Anomaly.VANISHED_READ, f"saw {name} {at}, which is not there any more"
    for other in others:
        if append_at(other, data, boundary, len(data)) is not None:
            message = f"saw an append to incarnation {other.incarnation} {at}"
            return Anomaly.RESURRECTED_DATA, message
    return Anomaly.CORRUPT_READ, f"from byte {start + wrong} on not the log's bytes"


def _sweep(life: Life, bounds: _Bounds) -> None:
    """Finds ceilings below a floor that had returned before they were invoked."""
    floors, ceilings = bounds.floors, bounds.ceilings
    by_time = itemgetter(0)
    floors.sort(key=by_time)
    ceilings.sort(key=by_time)
    upcoming = iter(floors)
    returned_ns, state, operation = next(upcoming, (_NEVER, 0, None))
    highest, witness = -1, None
    for invoked_ns, ceiling, late in ceilings:
        while returned_ns < invoked_ns:
            if state > highest:
                highest, witness = state, operation
            returned_ns, state, operation = next(upcoming, (_NEVER, 0, None))
        if ceiling < highest and witness is not None:
            _report_disorder(life, late, ceiling, witness, highest)


def _report_disorder(
    life: Life, late: Operation, ceiling: int, witness: Operation, highest: int
) -> None:
    if highest == _GONE:
        life.find(Anomaly.USE_AFTER_DELETE, "after the stream was deleted", late, witness)
    elif late.kind in ("append", "create"):
        message = f"took effect at byte {ceiling // 2}, after which others had been before"
        life.find(Anomaly.REORDERED_WRITE, message, late, witness)
    else:
        message = f"saw {_state(ceiling)} after {_state(highest)} had been seen"
        life.find(Anomaly.STALE_READ, message, late, witness)


def _state(state: int) -> str:
    return f"a tail of {state // 2}{' and closed' if state & 1 else ''}"
