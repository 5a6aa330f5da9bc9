"""The links of streams to subscriptions, and what of each stream is acknowledged.

A stream has its links in its own row, so an append finds them without a search. A subscription that
names a stream is linked to it at once, or when the stream is created; one whose pattern matches it
when the stream is created, or else when it is next looked at, which is before it is next written:
its tail is then what it was when the subscription was made. So making a subscription costs the same
however many streams it matches. Links of deleted subscriptions go when the stream is next looked
at, too.

`Stream.watched` is the version of the patterns as of which an append has nothing to do: the stream
was matched against all of them, has no link of a deleted subscription, and each of its links, if it
has any, is pending already.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

from streamd.streams import keys
from streamd.streams.fencing import seals
from streamd.streams.model import Stream
from streamd.streams.state import State
from streamd.streams.subscriptions.model import MAX_LINKS, Ack, Link, Subscription

# `Stream.watched` of a stream that the next append must look at.
_LOOK = -1
_NUMBER = attrgetter("number")


def look(state: State, key: bytes, stream: Stream) -> bool:
    """Bring the links of a stream up to date, if that takes something: returns whether it did. The
    caller stores the stream then."""
    if stream.watched == state.header.pattern_version:
        return False
    refresh(state, key, stream)
    return True


def refresh(state: State, key: bytes, stream: Stream) -> None:
    """Link the subscriptions that should be linked and are not, at the stream's tail, and drop the
    links of deleted ones. The caller stores the stream."""
    records = state.subscriptions
    links = {one.number: one for one in stream.links if records.get(one.number) is not None}
    for number in sorted(records.naming(key)):
        _linked(state, key, stream, links, number).is_explicit = True
    for number in records.matching(key):
        if number not in links and not _may_match(state, key, number, len(links)):
            continue
        _linked(state, key, stream, links, number).is_glob = True
    stream.links = tuple(links[number] for number in sorted(links))
    _watch(state, stream)


def _may_match(state: State, key: bytes, number: int, links: int) -> bool:
    """Whether a pattern that matches a stream links it: a wake stream does not wake its own
    subscription, and a stream has so many links and no more."""
    return _found(state, number).config.wake_key != key and links < MAX_LINKS


def _linked(state: State, key: bytes, stream: Stream, links: dict[int, Link], number: int) -> Link:
    """The link to a subscription, made at the tail if it is new."""
    link = links.get(number)
    if link is None:
        link = links[number] = Link(number, stream.records, stream.size)
        state.subscriptions.rows.put(keys.LINKED, number, key, exists=True)
        if stream.settings.write_fence:
            seals.link(stream, _count_fenced(state, number, 1))
    return link


def will_link(state: State, key: bytes, stream: Stream, number: int) -> bool:
    """Whether a stream is not linked to a subscription only because it was not looked at since
    that was made."""
    return number in state.subscriptions.matching(key) and _may_match(
        state, key, number, len(stream.links)
    )


def _watch(state: State, stream: Stream) -> None:
    """Note whether the next append must look at the links."""
    is_quiet = all(link.is_pending for link in stream.links)
    stream.watched = state.header.pattern_version if is_quiet else _LOOK


def living(state: State, stream: Stream) -> Iterator[tuple[Link, Subscription]]:
    """The links of a stream to subscriptions that exist."""
    for link in stream.links:
        subscription = state.subscriptions.get(link.number)
        if subscription is not None:
            yield link, subscription


def appended(state: State, key: bytes, stream: Stream) -> list[Subscription]:
    """Mark the links of a stream with new records as pending; returns the subscriptions that have
    work by that, and did not have any from this stream. The caller stores the stream."""
    found: list[Subscription] = []
    for link, subscription in living(state, stream):
        if not link.is_pending:
            link.is_pending = True
            state.subscriptions.rows.put(keys.PENDING, link.number, key, exists=True)
            subscription.pending += 1
            subscription.latest = key
            state.subscriptions.put(subscription)
            found.append(subscription)
    _watch(state, stream)
    return found


def find(stream: Stream, number: int) -> Link | None:
    """The link of a stream to a subscription."""
    place = bisect_left(stream.links, number, key=_NUMBER)
    if place < len(stream.links) and stream.links[place].number == number:
        return stream.links[place]
    return None


def drop(state: State, key: bytes, stream: Stream, number: int) -> None:
    """Remove the link to a subscription that exists, if there is one. The caller stores the
    stream."""
    link = find(stream, number)
    if link is not None:
        _forget(state, key, stream, link)
        if stream.settings.write_fence:
            seals.unlink(state, stream, _found(state, number))
        stream.links = tuple(one for one in stream.links if one is not link)
        _watch(state, stream)


def drop_all(state: State, key: bytes, stream: Stream) -> None:
    """Remove all links of a stream that ends."""
    for link, _ in living(state, stream):
        _forget(state, key, stream, link)
    stream.links = ()
    if stream.fence.marks:
        seals.drop(state, stream)


def _forget(state: State, key: bytes, stream: Stream, link: Link) -> None:
    if link.is_pending:
        _settle(state, key, _found(state, link.number), link)
    state.subscriptions.rows.put(keys.LINKED, link.number, key, exists=False)
    if stream.settings.write_fence:
        _count_fenced(state, link.number, -1)


def _settle(state: State, key: bytes, subscription: Subscription, link: Link) -> None:
    """Note that nothing of the stream is pending for a subscription any longer."""
    link.is_pending = False
    subscription.pending -= 1
    if subscription.latest == key:
        subscription.latest = b""
    state.subscriptions.rows.put(keys.PENDING, link.number, key, exists=False)
    state.subscriptions.put(subscription)


def _count_fenced(state: State, number: int, more: int) -> Subscription:
    subscription = _found(state, number)
    subscription.fenced_links += more
    state.subscriptions.put(subscription)
    return subscription


def _found(state: State, number: int) -> Subscription:
    """The subscription of a link or a pattern, which exists."""
    subscription = state.subscriptions.get(number)
    assert subscription is not None, "its links and its pattern go with it"
    return subscription


# -- acknowledging ---------------------------------------------------------------------------------


def ack_fault(stream: Stream | None, number: int, ack: Ack) -> str:
    """Why a subscription cannot acknowledge that; empty if it can. The links are up to date."""
    link = None if stream is None else find(stream, number)
    if stream is None or link is None:
        return "unlinked"
    if ack.record < link.acked_record or ack.byte < link.acked_byte:
        return "regressed"
    if ack.record > stream.records or ack.byte > stream.size:
        return "beyond-tail"
    if ack.record == stream.records and ack.byte != stream.size:
        return "beyond-tail"
    return ""


def acknowledge(state: State, stream: Stream, subscription: Subscription, ack: Ack) -> None:
    """Advance what a subscription has acknowledged of a stream. The caller stores the stream."""
    link = find(stream, subscription.number)
    assert link is not None
    if ack.record <= link.acked_record:
        return
    link.acked_record, link.acked_byte = ack.record, ack.byte
    if link.is_pending and ack.record >= stream.records:
        _settle(state, ack.key, subscription, link)
        _watch(state, stream)
