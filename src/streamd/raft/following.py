"""Takes over a leader's log (thesis 3.5)."""

from __future__ import annotations

from streamd.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    CommitNotice,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
)
from streamd.raft.state import State


def follow_append(state: State, request: AppendRequest) -> None:
    """Make the log equal the leader's up to the request's end, or say where to look instead.

    The answer leaves once the entries are stored. Raises `RaftViolation` when the leader's log
    contradicts a committed entry.
    """
    if state.restoring is not None:
        return
    log = state.log
    if request.prev_index < log.commit_index:
        # An old request: committed entries are equal by definition.
        _accept(state, request, log.commit_index)
    elif log.has(request.prev_index, request.prev_term):
        _take_over(state, request.entries)
        match_index = request.prev_index + len(request.entries)
        log.commit_to(min(request.commit_index, match_index))
        _accept(state, request, match_index)
    else:
        _reject(state, request.sender, request.prev_index, request.prev_term)
    state.vote_eligibility.heard_commit(request.commit_index, log)


def _accept(state: State, request: AppendRequest, match_index: int) -> None:
    state.messages_after_store.append(
        AppendAccepted(state.node_id, request.sender, state.term, match_index)
    )


def _reject(state: State, leader_id: int, prev_index: int, prev_term: int) -> None:
    hint_index, hint_term = state.log.last_not_after_term(prev_index, prev_term)
    state.messages_after_store.append(
        AppendRejected(
            state.node_id,
            leader_id,
            state.term,
            prev_index,
            hint_index,
            hint_term,
            not state.vote_eligibility.may_vote,
        )
    )


def _take_over(state: State, entries: list[Entry]) -> None:
    """Append the new entries. Only a contradicting entry removes anything: a request that
    arrives late must not remove what a later one brought."""
    log = state.log
    for place, entry in enumerate(entries):
        if log.has(entry.index, entry.term):
            continue
        if entry.index <= log.last_index:
            log.truncate(entry.index)
            state.configurations.truncate(entry.index)
        new = entries[place:]
        log.append(new)
        for added in new:
            if added.kind == EntryKind.CONFIGURATION:
                state.configurations.append(added)
        return


def follow_heartbeat(state: State, heartbeat: Heartbeat) -> None:
    """Raises `RaftViolation` when the log lost entries that this node has confirmed. If the node
    knows of the loss, it reports the loss to the leader instead."""
    log = state.log
    state.vote_eligibility.heard_leader(heartbeat.last_index, heartbeat.life)
    state.lag.heard(heartbeat.last_index)
    if state.restoring is None:
        if heartbeat.commit_index > log.last_index and not state.vote_eligibility.may_vote:
            _reject(state, heartbeat.sender, heartbeat.commit_index, state.term)
        else:
            log.commit_to(heartbeat.commit_index)
            state.vote_eligibility.heard_commit(heartbeat.commit_index, log)
    state.messages.append(
        HeartbeatReply(
            state.node_id,
            heartbeat.sender,
            state.term,
            heartbeat.round,
            state.vote_eligibility.life,
        )
    )


def follow_commit_notice(state: State, notice: CommitNotice) -> None:
    """Raises `RaftViolation` as for a heartbeat. A notice that the node cannot use is ignored;
    the next heartbeat repeats it."""
    log = state.log
    is_lost = notice.commit_index > log.last_index and not state.vote_eligibility.may_vote
    if state.restoring is None and not is_lost:
        log.commit_to(notice.commit_index)
        state.vote_eligibility.heard_commit(notice.commit_index, log)
