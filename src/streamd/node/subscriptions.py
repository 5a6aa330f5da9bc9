"""Reads the streams of subscriptions, as this node has applied them.

`GroupReads.catch_up` before a call makes what it returns include every acknowledged write.
"""

from __future__ import annotations

import trio

from streamd.group.group import Group
from streamd.node.reads import Reads
from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.subscriptions.linked import (
    Candidates,
    LinkedPage,
    LinkedStream,
    LinkQuery,
    candidates,
    shown,
)
from streamd.streams.subscriptions.model import MAX_ACKS

# Streams in an answer or a notification: as many as one request can acknowledge.
MAX_STREAMS = MAX_ACKS
# Reads at once, of pages and for wakes: clients that list in a loop must take neither every thread
# nor the turn of wakes, whose leases run meanwhile.
_AT_ONCE = 4


class SubscriptionReads:
    """The streams of subscriptions, from memory and the store."""

    def __init__(
        self, group: Group, reads: Reads, store: StateStore, run_blocking: RunBlocking
    ) -> None:
        self._group = group
        self._reads = reads
        self._store = store
        self._run_blocking = run_blocking
        self._paging = trio.CapacityLimiter(_AT_ONCE)
        self._waking = trio.CapacityLimiter(_AT_ONCE)

    async def page(
        self, number: int, after: bytes = b"", limit: int = MAX_STREAMS
    ) -> LinkedPage | None:
        """All streams of a subscription whose keys come after `after`, in the order of the keys,
        also those that it names and that do not exist; None if there is no such subscription.

        A page may be short, or even empty, without being the last.
        """
        # A stream that was made just before the subscription is only found in the store.
        await self._group.reads.stored()
        query = self._query(keys.LINKED, number, after, limit)
        return None if query is None else await self._page(query, self._paging)

    async def for_wake(self, number: int, limit: int = MAX_STREAMS) -> list[LinkedStream]:
        """The streams to show to a worker, those with pending records first; without those that
        were not written since the subscription was made. Empty without a subscription."""
        query = self._query(keys.PENDING, number, b"", limit)
        if query is None:
            return []
        found = await self._page(query._replace(named=(), pattern=""), self._waking)
        pending = [] if found is None else [one for one in found.streams if one.has_pending]
        query = self._query(keys.LINKED, number, b"", limit)
        if query is None or len(pending) >= limit:
            return pending
        further = await self._page(query._replace(pattern=""), self._waking)
        known = {one.key for one in pending}
        others = [] if further is None else [one for one in further.streams if one.key not in known]
        return (pending + others)[:limit]

    def _query(self, letter: bytes, number: int, after: bytes, limit: int) -> LinkQuery | None:
        records = self._group.state.subscriptions
        subscription = records.get(number)
        if subscription is None:
            return None
        return LinkQuery(
            letter,
            number,
            records.rows.unstored(letter, number),
            tuple(records.named_by(number)),
            subscription.config.pattern,
            after,
            limit,
        )

    async def _page(self, query: LinkQuery, limiter: trio.CapacityLimiter) -> LinkedPage | None:
        found: Candidates = await self._run_blocking(
            candidates, self._store, query, limiter=limiter
        )
        streams = await self._reads.streams(found.keys)
        records, now_ms = self._group.state.subscriptions, self._group.now_ms()
        subscription = records.get(query.number)
        if subscription is None:
            return None
        named = records.named_by(query.number)
        listed = (
            shown(key, stream, subscription, named, now_ms)
            for key, stream in zip(found.keys, streams, strict=True)
        )
        return LinkedPage([one for one in listed if one is not None], found.cursor)
