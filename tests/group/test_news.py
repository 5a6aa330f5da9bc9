"""When followers are told of commits by messages that say nothing else."""

from __future__ import annotations

import trio
import trio.testing

from streamd.group.news import INTERVAL_S, News
from streamd.raft.messages import AppendAccepted, AppendRequest, CommitNotice, Message
from tests.raft.cluster import SimulatedNode, settle
from tests.raft.test_leading import leader_of_three


def leader() -> SimulatedNode:
    """The leader of a group in which both others have accepted all entries and know of it."""
    node = leader_of_three()
    for member in (2, 3):
        node.core.step(AppendAccepted(member, 1, node.core.term, node.core.last_index))
    settle(node)
    assert not node.core.has_news
    return node


def commit_entry(node: SimulatedNode) -> list[Message]:
    """Let an entry be proposed, stored here and accepted by the others; returns what the leader
    has sent to that end."""
    core = node.core
    core.propose([b"x"])
    sent = take(node, announce=False)
    for member in (2, 3):
        core.step(AppendAccepted(member, 1, core.term, core.last_index))
    return sent


def take(node: SimulatedNode, *, announce: bool) -> list[Message]:
    """The messages that the leader hands out; everything it wants to store is stored."""
    core, messages = node.core, []
    while (ready := core.ready(announce=announce)) is not None:
        messages += ready.messages
        if ready.must_store:
            node.disk.write(ready.hard_state, ready.entries)
            core.stored(*ready.completion)
        for entry in ready.committed:
            core.applied(entry.index)
    return messages


def test_entries_bring_the_news_of_a_commit_that_was_not_announced() -> None:
    node = leader()
    commit_entry(node)
    assert take(node, announce=False) == []
    assert node.core.has_news
    appends = [message for message in commit_entry(node) if isinstance(message, AppendRequest)]
    assert [message.commit_index for message in appends] == [3, 3]
    # Only the second commit is left to be told of.
    commits = [
        message.commit_index
        for message in take(node, announce=True)
        if isinstance(message, CommitNotice)
    ]
    assert commits == [4, 4]
    assert not node.core.has_news


async def test_the_first_commit_is_announced_at_once_and_others_wait_for_the_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = leader()
    news = News(node.core)
    woken_at: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(news.run, lambda: woken_at.append(trio.current_time()))
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        commit_entry(node)
        assert news.may_be_told()
        assert len(take(node, announce=True)) == 2
        commit_entry(node)
        assert not news.may_be_told()
        await trio.sleep(INTERVAL_S / 2)
        commit_entry(node)
        assert not news.may_be_told()
        await trio.sleep(INTERVAL_S)
        assert woken_at == [started + INTERVAL_S]
        assert news.may_be_told()
        nursery.cancel_scope.cancel()


async def test_a_group_where_nothing_happens_is_not_woken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = leader()
    news = News(node.core)
    woken_at: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(news.run, lambda: woken_at.append(trio.current_time()))
        await trio.testing.wait_all_tasks_blocked()
        commit_entry(node)
        assert news.may_be_told()
        take(node, announce=True)
        await trio.sleep(10 * INTERVAL_S)
        assert woken_at == []
        assert news.may_be_told()
        nursery.cancel_scope.cancel()
