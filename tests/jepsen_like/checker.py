"""Checks recorded histories: `python -m tests.jepsen_like.checker FILE...`

Offsets give the order of everything, so no search is needed: the final log is tiled with the
appends, each read is compared with it, and one sweep through time finds whatever contradicts the
order in which the clients saw things happen. docs/jepsen.md says how to read the findings.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, pairwise
from operator import attrgetter
from pathlib import Path

import msgspec

from tests.jepsen_like import history
from tests.jepsen_like.content import Life, gather, place_appends, settle_content
from tests.jepsen_like.findings import Anomaly, Finding, MalformedHistory, Report
from tests.jepsen_like.history import UNKNOWN, Operation
from tests.jepsen_like.observations import check_observations
from tests.jepsen_like.producers import check_producers

_DECIDED_WITHIN_NS = 15_000_000_000
_SESSION_LOST = "session with the log was lost"
_WRITES = frozenset({"create", "append", "close", "delete"})


def check(operations: Sequence[Operation], removed: Collection[str] = ()) -> Report:
    """All findings in a history of any number of streams.

    `removed` names the nodes that were removed from the cluster in the course of it.

    Raises MalformedHistory when it was not recorded by the rules.
    """
    # Millions of small objects without cycles: garbage collection would take long.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _check_all(operations, removed)
    finally:
        if was_enabled:
            gc.enable()


def _check_all(operations: Sequence[Operation], removed: Collection[str]) -> Report:
    report = Report()
    _count(operations, report)
    _check_clients(operations)
    _check_patience(operations, removed, report)
    streams: dict[str, dict[int, list[Operation]]] = {}
    for operation in operations:
        lives = streams.get(operation.stream)
        if lives is None:
            lives = streams[operation.stream] = {}
        own = lives.get(operation.incarnation)
        if own is None:
            own = lives[operation.incarnation] = []
        own.append(operation)
    for name, lives in streams.items():
        _check_stream(name, lives, report)
    return report


def _count(operations: Iterable[Operation], report: Report) -> None:
    kinds = map(attrgetter("kind", "outcome"), operations)
    counts: dict[tuple[str, str], int] = {}
    for key in kinds:
        counts[key] = counts.get(key, 0) + 1
    report.counts.update({f"{kind} {outcome}": count for (kind, outcome), count in counts.items()})


def _check_clients(operations: Iterable[Operation]) -> None:
    """A client does one thing at a time, and nothing after a write of unknown outcome."""
    idle_since: dict[str, int] = {}
    for operation in sorted(operations, key=attrgetter("invoked_ns")):
        client = operation.client
        if operation.invoked_ns < idle_since.get(client, 0):
            raise MalformedHistory(f"{client} was not done when it began {operation}")
        if operation.outcome == "unknown" and operation.kind in _WRITES:
            idle_since[client] = sys.maxsize
        else:
            idle_since[client] = operation.returned_ns


def _check_patience(
    operations: Iterable[Operation], removed: Collection[str], report: Report
) -> None:
    """A node that answers knows the outcome of a write, or has waited for so long.

    The limit is that of `streamd.group`: clients have a clock of their own, and hear later. Only a
    node that was removed cannot find out: its session went with it.
    """
    for operation in operations:
        took_ns = operation.returned_ns - operation.invoked_ns
        if UNKNOWN in operation.refusal and operation.outcome == "unknown":
            report.counts["outcome unknown to the node"] += 1
            lost_session = operation.node in removed and _SESSION_LOST in operation.refusal
            if took_ns < _DECIDED_WITHIN_NS and not lost_session:
                message = f"the node stopped waiting after {took_ns / 1e9:.1f} s"
                report.findings.append(
                    Finding(
                        Anomaly.EARLY_UNKNOWN,
                        operation.stream,
                        operation.incarnation,
                        message,
                        (operation,),
                    )
                )


def _check_stream(name: str, lives: dict[int, list[Operation]], report: Report) -> None:
    _hand_over_stragglers(lives, report)
    gathered = [gather(name, number, lives[number]) for number in sorted(lives)]
    for life, following in pairwise(gathered):
        life.next_begins_ns = min((c.invoked_ns for c in following.creates), default=sys.maxsize)
    # The last life first: an append that strayed into a later life is not missing from its own.
    for life in reversed(gathered):
        others = [other for other in gathered if other is not life]
        settle_content(life, others)
        place_appends(life, others)
    for life in gathered:
        check_producers(life)
        check_observations(life, [other for other in gathered if other is not life])
        _check_tokens(life)
        report.findings += life.findings
        report.counts["incarnations"] += 1
        report.counts["without final read"] += not life.is_final
        took_effect = sum(append.outcome == "unknown" for _, append in life.order)
        report.counts["unknown that took effect"] += took_effect


def _hand_over_stragglers(lives: dict[int, list[Operation]], report: Report) -> None:
    """Operations under way when the path's next life began may have reached either life.

    Such reads prove nothing and are left out. Such closes and deletes may have happened to both.
    Appends stay: their payload tells where they went.
    """
    numbers = sorted(lives)
    for number, following in pairwise(numbers):
        creates = [o.invoked_ns for o in lives[following] if o.kind == "create"]
        begins_ns = min(creates, default=sys.maxsize)
        kept = []
        for operation in lives[number]:
            late = operation.returned_ns > begins_ns or operation.outcome == "unknown"
            if not late or operation.kind in ("append", "create"):
                kept.append(operation)
            elif operation.kind in ("close", "delete"):
                uncertain = msgspec.structs.replace(operation, outcome="unknown")
                kept.append(operation if operation.outcome != "ok" else uncertain)
                lives[following].append(uncertain)
            elif operation.outcome == "ok":
                report.counts["ambiguous"] += 1
        lives[number] = kept


def _check_tokens(life: Life) -> None:
    for first, other in life.offsets.conflicts:
        culprits = chain(life.appends.values(), life.reads, life.heads, life.closes)
        tellers = [o for o in culprits if o.next_offset == other][:1]
        message = f"{first} and {other} are one position"
        life.find(Anomaly.INCONSISTENT_OFFSETS, message, *tellers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings. Returns 0 without findings, 1 with findings, 2 for a malformed
    history."""
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen_like.checker")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="history, JSON lines")
    parser.add_argument(
        "--limit", type=int, default=10, help="findings shown of each name (default: 10)"
    )
    options = parser.parse_args(arguments)
    started_s = time.perf_counter()
    try:
        operations = history.load(options.files)
        report = check(operations)
    except (OSError, msgspec.DecodeError, MalformedHistory) as error:
        print(f"cannot check: {error}", file=sys.stderr)
        return 2
    elapsed_s = time.perf_counter() - started_s
    print(f"{len(operations)} operations checked in {elapsed_s:.1f} s")
    for name, count in sorted(report.counts.items()):
        print(f"  {count:>9} {name}")
    for anomaly, findings in report.by_name().items():
        print(f"\n{anomaly.value}: {len(findings)}")
        for finding in findings[: options.limit]:
            print(f"- {finding}")
        if len(findings) > options.limit:
            print(f"  and {len(findings) - options.limit} more")
    print("\nno findings" if report.is_valid else f"\n{len(report.findings)} findings")
    return 0 if report.is_valid else 1


if __name__ == "__main__":
    sys.exit(main())
