"""Idempotent producers: each sequence number once, in order, and never from an earlier epoch."""

from __future__ import annotations

import sys

from tests.jepsen_like.content import Life
from tests.jepsen_like.findings import Anomaly
from tests.jepsen_like.history import STALE_EPOCH, Operation


def check_producers(life: Life) -> None:
    """Compares the stamps of what took effect with the order of the log."""
    latest: dict[str, Operation] = {}
    for _, append in life.order:
        stamp = append.stamp
        if stamp is None:
            continue
        before = latest.get(stamp.producer)
        if before is None or before.stamp is None or stamp.epoch > before.stamp.epoch:
            if stamp.seq != 0 and life.is_final:
                life.find(Anomaly.SEQUENCE_GAP, "an epoch begins at 0", append)
        elif stamp.epoch < before.stamp.epoch:
            message = f"took effect after epoch {before.stamp.epoch}"
            life.find(Anomaly.STALE_EPOCH_ACCEPTED, message, append, before)
            continue
        elif stamp.seq <= before.stamp.seq:
            message = f"took effect after sequence number {before.stamp.seq}"
            life.find(Anomaly.SEQUENCE_REUSED, message, append, before)
            continue
        elif stamp.seq != before.stamp.seq + 1 and life.is_final:
            message = f"follows sequence number {before.stamp.seq}"
            life.find(Anomaly.SEQUENCE_GAP, message, append, before)
        latest[stamp.producer] = append
    _check_fencing(life)


def _check_fencing(life: Life) -> None:
    """A fenced producer must have a successor that had begun by then."""
    fenced = [a for a in life.refused if a.refusal == STALE_EPOCH and a.stamp is not None]
    begun: dict[str, dict[int, int]] = {}
    for append in life.appends.values() if fenced else ():
        if append.stamp is not None:
            epochs = begun.setdefault(append.stamp.producer, {})
            epoch = append.stamp.epoch
            epochs[epoch] = min(append.invoked_ns, epochs.get(epoch, append.invoked_ns))
    succeeded = {producer: _succeeded_ns(epochs) for producer, epochs in begun.items()}
    for append in fenced:
        if append.stamp is None:
            continue
        if succeeded[append.stamp.producer][append.stamp.epoch] >= append.returned_ns:
            life.find(Anomaly.PHANTOM_FENCING, "fenced, and nobody had a later epoch", append)


def _succeeded_ns(begun: dict[int, int]) -> dict[int, int]:
    """For each epoch of a producer, when the first of its later epochs began."""
    succeeded = {}
    earliest_ns = sys.maxsize
    for epoch in sorted(begun, reverse=True):
        succeeded[epoch] = earliest_ns
        earliest_ns = min(earliest_ns, begun[epoch])
    return succeeded
