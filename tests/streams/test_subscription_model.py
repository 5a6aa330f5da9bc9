"""Random commands, flushes and crashes: subscriptions stay what plain lists say they are."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, precondition, rule

from streamd.streams import keys
from streamd.streams.state import Item
from streamd.streams.subscriptions.model import Subscription
from tests.streams.driver import key
from tests.streams.stateful_subscriptions import SubscriptionRules


class SubscriptionsAgainstLists(SubscriptionRules):
    def __init__(self) -> None:
        super().__init__()
        self.flushing: list[Item] | None = None

    # -- what a node does to its store --------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.end_flush()
        self.driver.flush()

    @rule()
    def flush_the_twin(self) -> None:
        self.twin.flush()

    @precondition(lambda self: self.flushing is None)
    @rule()
    def begin_flush(self) -> None:
        """The store gets the rows later, or never."""
        self.flushing = self.driver.state.begin_flush()

    @rule()
    def end_flush(self) -> None:
        if self.flushing is not None:
            self.driver.store.write(self.flushing)
            self.driver.state.end_flush()
            self.flushing = None

    @rule()
    def reclaim(self) -> None:
        self.flush()
        self.driver.reclaim()

    @rule()
    def crash(self) -> None:
        """Start again from the store, and replay the log after it."""
        self.flushing = None
        self.driver.reopen()
        stored = self.driver.state.header.applied_index
        now_ms = self.driver.now_ms
        for at_ms, commands in self.log[stored:]:
            self.driver.now_ms = at_ms
            self.driver.entry(*commands)
        self.driver.now_ms = now_ms

    # -- what always holds --------------------------------------------------------------------

    @invariant()
    def subscriptions_have_the_streams_that_the_lists_say(self) -> None:
        assert {one.subscription_id for one in self.records()} == self.expected.keys()
        for name, expected in self.expected.items():
            # Streams that were never stored are found by a subscription's pattern in the store
            # only, so a node stores first (`SubscriptionReads.page`).
            names = {one for one in expected.acked if self.is_linked_or_stored(name, one)}
            listed = self.driver.listed(name).streams
            found = {one.path.partition("/")[2]: one for one in listed}
            assert found.keys() == names | expected.named
            for stream in names:
                shown = found[stream]
                tail = self.tails[stream]
                assert (shown.acked.record, shown.tail.record) == (expected.acked[stream], tail)
                assert shown.has_pending == (expected.acked[stream] < tail)
                assert (shown.link_type == "explicit") == (stream in expected.named)

    def is_linked_or_stored(self, name: str, stream: str) -> bool:
        number = self.expected[name].number
        is_linked = any(link.number == number for link in self.driver.stream(stream).links)
        return is_linked or keys.STREAM + key(stream) in self.driver.store.rows

    @invariant()
    def pending_streams_are_listed_and_counted(self) -> None:
        for name in self.expected:
            listed = self.driver.listed(name, keys.PENDING, with_pattern=False).streams
            pending = {one.path.partition("/")[2] for one in listed if one.has_pending}
            assert pending == self.pending(name)
            assert self.driver.named(name).pending == len(pending)

    @invariant()
    def work_that_is_pending_has_a_wake(self) -> None:
        for one in self.records():
            assert one.wake is not None or not one.pending
            assert one.wake is not None or (one.due_ms, one.holder) == (None, "")

    @invariant()
    def generations_only_rise(self) -> None:
        for one in self.records():
            name = f"{one.subscription_id} {one.number}"
            assert one.generation >= self.generations.get(name, 0)
            self.generations[name] = one.generation

    @invariant()
    def each_wake_has_one_event(self) -> None:
        if self.driver.find("wakes") is None:
            return
        events = [(one["subscription_id"], one["generation"]) for one in self.driver.events()]
        assert len(set(events)) == len(events)
        latest = dict(sorted(events))
        for one in self.records():
            if one.config.wake_key and one.wake is not None:
                assert latest[one.subscription_id] == one.generation

    @invariant()
    def what_is_due_is_known(self) -> None:
        times = [one.due_ms for one in self.records() if one.due_ms is not None]
        assert self.driver.state.subscriptions.due.next_ms == min(times, default=None)

    def records(self) -> list[Subscription]:
        return list(self.driver.state.subscriptions.records.values())

    def teardown(self) -> None:
        """The twin, which was stored at other times and never crashed, has the same rows."""
        self.end_flush()
        rows = []
        for driver in (self.driver, self.twin):
            driver.flush()
            driver.reclaim()
            # How records are cut into chunks differs.
            rows.append({row: one for row, one in driver.store.rows.items() if row[:1] != b"d"})
        assert rows[0] == rows[1]


class SubscriptionsForLonger(SubscriptionsAgainstLists):
    """The same, with more examples."""


SubscriptionsAgainstLists.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestSubscriptionsAgainstLists = SubscriptionsAgainstLists.TestCase
SubscriptionsForLonger.TestCase.settings = settings(max_examples=400, stateful_step_count=60)
TestSubscriptionsForLonger = pytest.mark.long(SubscriptionsForLonger.TestCase)
