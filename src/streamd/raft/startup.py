"""Makes the core's starting values from the node's disk."""

from __future__ import annotations

from streamd.raft.interface import LogReader, RaftViolation
from streamd.raft.log import Log
from streamd.raft.membership import ConfigurationHistory
from streamd.raft.messages import Configuration, EntryKind, HardState

SCAN_BYTES = 1024 * 1024


def stored_hard_state(hard_state: HardState, log: Log, applied_index: int) -> HardState:
    """The hard state to start with. Raises `RaftViolation` when it does not belong to the log, or
    the log does not belong to the applied state.

    A snapshot can be installed in a term that the node had no time to store. The node cannot have
    voted in that term either, because a vote leaves only after it was stored.
    """
    if not log.first_index - 1 <= applied_index <= log.last_index:
        raise RaftViolation(
            f"the state has applied index {applied_index}, but the log goes from"
            f" {log.first_index} to {log.last_index}"
        )
    if hard_state.term >= log.last_term:
        return hard_state
    if log.first_index > log.last_index:
        return HardState(log.last_term)
    raise RaftViolation(
        f"the log holds an entry of term {log.last_term}, but the stored term is"
        f" {hard_state.term}: the log and the hard state do not belong together"
    )


def stored_configurations(
    log: LogReader, applied_index: int, configuration: Configuration
) -> ConfigurationHistory:
    """The configurations in the log after the applied index; reads that part of the log once."""
    history = ConfigurationHistory(applied_index, configuration)
    index = applied_index + 1
    while index <= log.last_index:
        entries = log.entries(index, log.last_index + 1, SCAN_BYTES)
        for entry in entries:
            if entry.kind == EntryKind.CONFIGURATION:
                history.append(entry)
        index = entries[-1].index + 1
    return history
