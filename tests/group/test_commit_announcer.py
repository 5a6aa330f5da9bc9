"""When followers are told of commits by messages that say nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from streamd.group.commit_announcer import INTERVAL_S, CommitAnnouncer
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


class Announcing:
    """A leader's `CommitAnnouncer` at work on a clock that jumps."""

    def __init__(self) -> None:
        self.node = leader()
        self.announcer = CommitAnnouncer(self.node.core)
        self.woken_at: list[float] = []

    def woken(self) -> None:
        self.woken_at.append(trio.current_time())

    def commits(self) -> int:
        """Commit an entry; returns how many followers are told of it at once."""
        commit_entry(self.node)
        return len(take(self.node, announce=self.announcer.is_due()))


@asynccontextmanager
async def announcing() -> AsyncIterator[Announcing]:
    one = Announcing()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.announcer.run, one.woken)
        await trio.testing.wait_all_tasks_blocked()
        yield one
        nursery.cancel_scope.cancel()


async def test_commits_that_are_rare_are_announced_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with announcing() as one:
        for _ in range(5):
            assert one.commits() == 2
            await trio.sleep(INTERVAL_S)
        assert one.woken_at == []


async def test_frequent_commits_are_announced_once_in_an_interval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with announcing() as one:
        told = []
        for _ in range(41):
            told.append(one.commits())
            await trio.sleep(INTERVAL_S / 8)
        assert 10 <= sum(told) <= 12
        assert one.woken_at == [], "no wait ends while clients write"


async def test_the_last_of_frequent_commits_is_announced_when_no_other_follows(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with announcing() as one:
        for expected in (2, 0, 0):
            assert one.commits() == expected
            await trio.sleep(INTERVAL_S / 4)
        last_at = trio.current_time()
        await trio.sleep(10 * INTERVAL_S)
        [woken_at] = one.woken_at
        assert woken_at - last_at <= INTERVAL_S
        assert len(take(one.node, announce=one.announcer.is_due())) == 2
        await trio.sleep(10 * INTERVAL_S)
        assert one.woken_at == [woken_at], "what was told is not told again"
