"""Which streams are linked to which subscriptions, as the log leads to it (docs/subscriptions.md).

A stream's links are brought up to date when it is looked at: made, named, or about to get records.
So the model does that where the server does; rows of states have what was made by then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from streamd_audit.replay.globs import Patterns, path_of
from streamd_audit.replay.model import Linked, Mark, Stream
from streamd_audit.replay.subscribed import Subscribed
from streamd_audit.subscriptions import Ack

MAX_LINKS = 1_000
# `watched` of a stream that its next records must look at.
LOOK = -1


class Links:
    """The links of a scope's streams. `version` is that of the patterns; the keys of streams whose
    links change are added to `changed`, their subscriptions to `touched`."""

    def __init__(self, version: int, changed: set[bytes], touched: set[Subscribed]) -> None:
        self.version = version
        self._changed, self._touched = changed, touched
        self.naming: defaultdict[bytes, set[Subscribed]] = defaultdict(set)
        self.named_count = 0
        self.living: set[Subscribed] = set()
        self.patterns: Patterns[Subscribed] = Patterns()

    # -- subscriptions ---------------------------------------------------------------------------

    def add(self, one: Subscribed) -> None:
        """Take a subscription that was made, or that a state has."""
        self.living.add(one)
        if one.config.pattern:
            self.patterns.add(one.config.pattern, one)

    def remove(self, one: Subscribed) -> None:
        """Note that a subscription was deleted."""
        self.living.remove(one)
        if one.config.pattern:
            self.patterns.remove(one.config.pattern, one)
        for key in [*one.named]:
            self.unname(one, key)

    def name(self, one: Subscribed, key: bytes) -> None:
        """Note that a subscription names a stream."""
        if key not in one.named:
            one.named.add(key)
            self.naming[key].add(one)
            self.named_count += 1

    def unname(self, one: Subscribed, key: bytes) -> None:
        """Note that a subscription does not name a stream any longer."""
        if key in one.named:
            one.named.remove(key)
            self.naming[key].remove(one)
            self.named_count -= 1

    # -- streams ---------------------------------------------------------------------------------

    def look(self, stream: Stream) -> bool:
        """Bring a stream's links up to date, if that takes something; returns whether it did."""
        if stream.watched == self.version:
            return False
        self.refresh(stream)
        return True

    def refresh(self, stream: Stream) -> None:
        """Drop the links of deleted subscriptions, and make those that are missing."""
        found = {one: link for link, one in self.of(stream)}
        for one in _in_order(self.naming.get(stream.key, ())):
            self._linked(stream, found, one).is_explicit = True
        matching = self.patterns.matching(path_of(stream.key)) if len(self.patterns) else []
        for one in _in_order(matching):
            is_own = one.config.wake_key == stream.key
            if one in found or (not is_own and len(found) < MAX_LINKS):
                self._linked(stream, found, one).is_glob = True
        stream.links = [found[one] for one in _in_order(found)]
        self._watch(stream)

    def _linked(self, stream: Stream, found: dict[Subscribed, Linked], one: Subscribed) -> Linked:
        if one not in found:
            found[one] = Linked(one, stream.records, stream.size)
            self._touched.add(one)
            if stream.settings.write_fence:
                one.fenced += 1
                self.fence(stream, one)
        return found[one]

    def fence(self, stream: Stream, one: Subscribed) -> None:
        """Note that a fenced stream was linked: earlier claims do not concern it."""
        ended = one.ended_generation
        known = stream.fence.mark_of(one) or Mark(one, ended)
        stream.put_mark(known._replace(sealed=max(known.sealed, ended), is_linked=True))

    def will_link(self, stream: Stream, one: Subscribed) -> bool:
        """Whether a stream is not linked only because it was not looked at since."""
        is_own = one.config.wake_key == stream.key
        has_place = not is_own and len(stream.links) < MAX_LINKS
        return has_place and one in self.patterns.matching(path_of(stream.key))

    def _watch(self, stream: Stream) -> None:
        self._changed.add(stream.key)
        is_quiet = all(link.is_pending for link in stream.links)
        stream.watched = self.version if is_quiet else LOOK

    def appended(self, stream: Stream) -> list[Subscribed]:
        """Note that a stream got records; returns the subscriptions that have work by that, and had
        none from this stream."""
        found = []
        for link, one in self.of(stream):
            if not link.is_pending:
                link.is_pending = True
                one.pending += 1
                one.latest = stream.key
                self._touched.add(one)
                found.append(one)
        self._watch(stream)
        return found

    def of(self, stream: Stream) -> Iterator[tuple[Linked, Subscribed]]:
        """The links to subscriptions that there are."""
        for link in stream.links:
            if isinstance(link.of, Subscribed) and link.of in self.living:
                yield link, link.of

    def find(self, stream: Stream, one: Subscribed) -> Linked | None:
        return next((link for link in stream.links if link.of is one), None)

    def drop(self, stream: Stream, one: Subscribed) -> None:
        """Remove a link."""
        link = self.find(stream, one)
        if link is not None:
            self._forget(stream, link, one)
            stream.links = [each for each in stream.links if each is not link]
            self._watch(stream)

    def drop_all(self, stream: Stream) -> None:
        """Remove the links of a stream that ends."""
        for link, one in self.of(stream):
            self._forget(stream, link, one)
        stream.links = []

    def _forget(self, stream: Stream, link: Linked, one: Subscribed) -> None:
        if link.is_pending:
            self._settle(stream, link, one)
        self._touched.add(one)
        one.fenced -= stream.settings.write_fence

    def _settle(self, stream: Stream, link: Linked, one: Subscribed) -> None:
        link.is_pending = False
        self._touched.add(one)
        one.pending -= 1
        if one.latest == stream.key:
            one.latest = b""

    # -- acknowledging ---------------------------------------------------------------------------

    def may_acknowledge(self, stream: Stream | None, one: Subscribed, ack: Ack) -> bool:
        """Whether a subscription can acknowledge that of a stream that was looked at."""
        link = None if stream is None else self.find(stream, one)
        if stream is None or link is None:
            return False
        is_end = ack.record == stream.records
        return (
            link.record <= ack.record <= stream.records
            and link.byte <= ack.byte <= stream.size
            and (not is_end or ack.byte == stream.size)
        )

    def acknowledge(self, stream: Stream, one: Subscribed, ack: Ack) -> None:
        """Note what a subscription has acknowledged of a stream."""
        link = self.find(stream, one)
        if link is None or ack.record <= link.record:
            return
        self._changed.add(stream.key)
        link.record, link.byte = ack.record, ack.byte
        if link.is_pending and ack.record >= stream.records:
            self._settle(stream, link, one)
            self._watch(stream)


def _in_order(some: Iterable[Subscribed]) -> list[Subscribed]:
    return sorted(some, key=lambda one: one.order)
