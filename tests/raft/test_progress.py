"""What a leader concludes from a follower's answers."""

from __future__ import annotations

import pytest

from streamd.raft.progress import Flow, Progress


def new_progress(next_index: int) -> Progress:
    return Progress(next_index, max_in_flight=2, max_in_flight_bytes=100)


@pytest.fixture
def replicating() -> Progress:
    progress = new_progress(5)
    progress.sent(4)
    assert progress.accepted(4)
    return progress


def test_a_probe_waits_for_its_answer() -> None:
    progress = new_progress(5)
    assert not progress.paused
    progress.sent(9)
    assert progress.paused
    assert progress.next_index == 5


def test_an_accepted_probe_begins_replication_after_the_match() -> None:
    progress = new_progress(5)
    progress.sent(9)
    assert progress.accepted(9)
    assert progress.flow is Flow.REPLICATE
    assert (progress.match_index, progress.next_index) == (9, 10)


def test_replication_is_optimistic_up_to_a_limit(replicating: Progress) -> None:
    replicating.sent(6)
    assert (replicating.next_index, replicating.paused) == (7, False)
    replicating.sent(8)
    assert (replicating.next_index, replicating.paused) == (9, True)
    assert replicating.accepted(6)
    assert not replicating.paused


def test_an_empty_request_takes_no_room(replicating: Progress) -> None:
    for _ in range(5):
        replicating.sent(4)
    assert not replicating.paused


def test_an_old_acknowledgement_moves_nothing_back(replicating: Progress) -> None:
    replicating.sent(9)
    assert replicating.accepted(9)
    assert not replicating.accepted(6)
    assert (replicating.match_index, replicating.next_index) == (9, 10)


def test_a_rejection_while_replicating_probes_after_the_match(replicating: Progress) -> None:
    replicating.sent(6)
    replicating.sent(8)
    assert replicating.rejected(prev_index=6, next_index=3)
    assert replicating.flow is Flow.PROBE
    assert (replicating.next_index, replicating.paused) == (5, False)


def test_a_rejection_of_entries_that_match_by_now_is_ignored(replicating: Progress) -> None:
    assert not replicating.rejected(prev_index=4, next_index=1)
    assert replicating.flow is Flow.REPLICATE


def test_a_probe_goes_back_to_the_hint_but_not_below_the_match() -> None:
    progress = new_progress(50)
    progress.sent(49)
    assert progress.rejected(prev_index=49, next_index=12)
    assert progress.next_index == 12
    progress.sent(11)
    assert progress.rejected(prev_index=11, next_index=40)
    assert progress.next_index == 11, "a useless hint still gains one place"


def test_an_answer_to_an_earlier_probe_is_ignored() -> None:
    progress = new_progress(50)
    progress.sent(49)
    assert not progress.rejected(prev_index=30, next_index=5)
    assert progress.paused
    assert progress.next_index == 50


def test_the_size_of_unanswered_requests_is_limited_too(replicating: Progress) -> None:
    replicating.sent(6, 100)
    assert replicating.paused
    assert replicating.accepted(6)
    assert not replicating.paused


def test_nothing_is_sent_until_the_raft_snapshot_has_arrived(replicating: Progress) -> None:
    replicating.sent(6, 100)
    replicating.await_snapshot()
    assert replicating.paused
    assert not replicating.rejected(prev_index=6, next_index=3)
    replicating.probe(90)
    assert (replicating.flow, replicating.next_index, replicating.paused) == (Flow.PROBE, 90, False)


def test_after_a_failed_raft_snapshot_the_leader_waits_for_a_message_of_the_follower(
    replicating: Progress,
) -> None:
    replicating.await_snapshot()
    replicating.snapshot_failed()
    assert (replicating.flow, replicating.paused) == (Flow.PROBE, True)


def test_a_followers_report_of_lost_entries_is_believed(replicating: Progress) -> None:
    replicating.sent(9)
    replicating.accepted(9)
    replicating.lost(3)
    assert (replicating.match_index, replicating.next_index) == (0, 3)
