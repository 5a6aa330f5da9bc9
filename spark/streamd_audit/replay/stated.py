"""What states say of subscriptions, compared with the result of the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from typing import TypeVar

from msgspec.structs import asdict, astuple

from streamd_audit import subscriptions as rows_of
from streamd_audit.replay.compare import Difference
from streamd_audit.replay.fences import Ended
from streamd_audit.replay.model import Fence, Linked, Mark, Seal, Stream
from streamd_audit.replay.subscribed import Begun, Subscribed
from streamd_audit.replay.subscriptions import Subscriptions
from streamd_audit.rows import Header, Row
from streamd_audit.rows import Stream as StreamRow
from streamd_audit.subscriptions import (
    EndedClaims,
    Key,
    Link,
    StreamFence,
    Subscription,
    Wake,
)

T = TypeVar("T")

KINDS = (
    "header", "subscription", "named", "linked", "pending", "ended claims", "subscription key",
)  # fmt: skip
_Links = list[tuple[int, int, int, bool, bool, bool]]


class Stated:
    """The rows of the state that was reached last, but for streams."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._held = subscriptions
        self._header: Header | None = None
        self._rows: dict[int, Subscription] = {}
        self._named: defaultdict[int, set[bytes]] = defaultdict(set)
        self._listed: defaultdict[bytes, set[tuple[str, int]]] = defaultdict(set)
        self._keys: dict[int, Key] = {}
        self._ended: dict[int, EndedClaims] = {}
        self._changed: set[int] = set()
        # Streams of which other rows list a link, or none any longer.
        self._relisted: set[bytes] = set()

    @property
    def is_changed(self) -> bool:
        """Whether anything is to be compared."""
        return bool(self._changed or self._relisted or self._held.changed or self._header)

    def take(self, row: Row, *, is_first: bool, is_there: bool) -> None:
        """Take a row that a state has, or has not any longer; `is_first` if the log continues from
        that state."""
        held, value = self._held, row.value
        held.is_here = True
        if isinstance(value, Header):
            self._header = value if is_there and not is_first else None
            return
        number = row.numbers[0]
        if not is_first:
            self._changed.add(number)
        if isinstance(value, Subscription):
            _put(self._rows, number, value, is_there)
            if is_first:
                held.take(subscribed(value))
        elif isinstance(value, EndedClaims):
            _put(self._ended, number, value, is_there)
            if is_first:
                held.fences.ended[number] = Ended(value.generation, value.streams)
        elif isinstance(value, Key):
            _put(self._keys, number, value, is_there)
            if is_first:
                held.keys = tuple(sorted((*held.keys, value), key=lambda key: key.number))
        elif row.kind == "named":
            (self._named[number].add if is_there else self._named[number].discard)(row.rest)
            one = held.find(number) if is_first else None
            if one is not None:
                held.links.name(one, row.rest)
        else:
            listed = self._listed[row.rest]
            (listed.add if is_there else listed.discard)((row.kind, number))
            self._relisted.update(() if is_first else (row.rest,))

    def differences(self, streams: Container[bytes]) -> Iterator[Difference]:
        """Where the state differs, but for the `streams` that there are and what is listed of
        them."""
        held = self._held
        yield from self._of_header()
        by_id = {row.subscription_id: row for row in self._rows.values()}
        for one in held.changed:
            row = by_id.get(one.subscription_id)
            if one.id is None and row is not None and one in held.links.living:
                held.believe(one, row.number)
        known = (one for one in held.changed if one.id is not None or one in held.links.living)
        numbers = {held.number_of(one) for one in known} | self._changed
        for number in sorted(numbers):
            yield from self._of_subscription(number)
        keys = tuple(self._keys[number] for number in sorted(self._keys))
        if keys != held.keys:
            told = [", ".join(_shown(key) for key in some) or "none" for some in (held.keys, keys)]
            yield _difference(f"keys {told[0]}", told[1])
        yield from self._of_ended()
        for key in sorted(self._relisted):
            if key not in streams and (listed := self._of_living(key)):
                found = ", ".join(f"{kind} to {number}" for kind, number in sorted(listed))
                yield Difference("subscription_differs", key, None, None, None, "no stream", found)
        held.changed.clear()
        self._changed.clear()
        self._relisted.clear()
        self._header = None

    def _of_ended(self) -> Iterator[Difference]:
        fences = self._held.fences
        expected = {fences.told(of): tuple(one) for of, one in fences.ended.items()}
        found = {number: astuple(row) for number, row in self._ended.items()}
        if expected != found:
            told = [f"claims that have ended: {some or 'none'}" for some in (expected, found)]
            yield _difference(*told)

    def _of_header(self) -> Iterator[Difference]:
        header, held = self._header, self._held
        if header is None:
            return
        expected = held.links.version, held.floor
        found = header.pattern_version, header.generation_floor
        if expected != found:
            told = [f"patterns of version {v}, generations above {g}" for v, g in (expected, found)]
            yield Difference("header_differs", b"", None, None, None, *told)

    def _of_subscription(self, number: int) -> Iterator[Difference]:
        one, row = self._held.find(number), self._rows.get(number)
        if one is None:
            if row is not None:
                yield _difference(f"no subscription {number}", row.subscription_id)
            return
        expected = row_of(one, number)
        if row is None:
            yield _difference(f"subscription {one.subscription_id}", "none")
        elif row != expected:
            fields = asdict(row)
            names = [name for name in fields if fields[name] != getattr(expected, name)]
            told, found = (
                ", ".join(f"{name} {getattr(each, name)!r}" for name in names)
                for each in (expected, row)
            )
            yield _difference(f"subscription {one.subscription_id}: {told}", found)
        elif one.named != (named := self._named[number]):
            odd = min(one.named ^ named)
            told, found = (f"{'' if odd in some else 'not '}{odd!r}" for some in (one.named, named))
            yield _difference(f"subscription {one.subscription_id} names {told}", found)

    # -- streams ---------------------------------------------------------------------------------

    def of_stream(self, stream: Stream, row: StreamRow, version: int) -> tuple[str, str] | None:
        """What a stream's row has to say of its links, and what it says, if that differs; `version`
        is that of the patterns as the state has it."""
        held = self._held
        if not held.is_here:
            # No pattern matches the stream, so it does not matter when it was last looked at.
            is_fine = not row.links and 0 <= row.watched <= version and row.fence == StreamFence()
            return None if is_fine else ("no links", f"{_told(row.links)}, as of {row.watched}")
        expected, found = _links_of(stream, held), [astuple(link) for link in row.links]
        if expected != found:
            return _told(expected), _told(found)
        fence = fence_row(stream, held)
        if fence != row.fence:
            return str(fence), str(row.fence)
        if stream.watched != row.watched:
            return f"links as of {stream.watched}", f"links as of {row.watched}"
        odd = self._listed_otherwise(stream)
        return ("rows of all links", odd) if odd else None

    def _listed_otherwise(self, stream: Stream) -> str:
        """What rows say otherwise of a stream's links than its own row, in words."""
        expected: set[tuple[str, int]] = set()
        for link, one in self._held.links.of(stream):
            number = self._held.number_of(one)
            expected.add(("linked", number))
            if link.is_pending:
                expected.add(("pending", number))
        odd = expected ^ self._of_living(stream.key)
        return ", ".join(f"{'no ' * (one in expected)}{one[0]} to {one[1]}" for one in sorted(odd))

    def _of_living(self, key: bytes) -> set[tuple[str, int]]:
        """Rows that list links of a stream. Those of subscriptions that are gone wait for their
        removal."""
        return {one for one in self._listed.get(key, ()) if self._held.find(one[1]) is not None}


def _put(rows: dict[int, T], number: int, value: T, is_there: bool) -> None:
    if is_there:
        rows[number] = value
    else:
        rows.pop(number, None)


def _difference(expected: str, found: str) -> Difference:
    return Difference("subscription_differs", b"", None, None, None, expected, found)


def _shown(key: Key) -> str:
    return f"{key.number} {key.public_key.hex()[:16]} of {key.added_ms}"


def subscribed(row: Subscription) -> Subscribed:
    """A subscription as a state has it; without the streams that it names."""
    one = Subscribed(
        None, row.number, row.subscription_id, row.config, row.named_digest, row.created_ms,
        row.generation, row.owner,
    )  # fmt: skip
    wake = row.wake
    if wake is not None:
        rest = wake.wake_id, wake.since_ms, wake.key, wake.is_forced
        one.wake = Begun(row.generation, 0, 0, *rest)
    for name in _ALIKE:
        setattr(one, name, getattr(row, name))
    one.fenced = row.fenced_links
    return one


def row_of(one: Subscribed, number: int) -> Subscription:
    """The row that a state has to have of a subscription."""
    wake = one.wake
    return Subscription(
        number,
        one.subscription_id,
        one.config,
        one.named_digest,
        one.created_ms,
        wake=wake and Wake(wake.id_of(number), wake.since_ms, wake.key, wake.is_forced),
        fenced_links=one.fenced,
        **{name: getattr(one, name) for name in _ALIKE},
    )


_ALIKE = (
    "generation", "holder", "lease_until_ms", "attempts", "is_received", "failures",
    "next_attempt_ms", "why", "pending", "latest", "owner",
)  # fmt: skip


def _links_of(stream: Stream, subscriptions: Subscriptions) -> _Links:
    """A stream's links as its row has to have them."""
    return [
        (
            link.of if isinstance(link.of, int) else subscriptions.number_of(link.of),
            link.record, link.byte, link.is_explicit, link.is_glob, link.is_pending,
        )
        for link in stream.links
    ]  # fmt: skip


def _told(links: Iterable[object]) -> str:
    return f"links {', '.join(map(str, links)) or 'none'}"


def linked(rows: Iterable[Link], subscriptions: Subscriptions) -> list[Linked]:
    """The links of a stream as a state has them."""
    found = []
    for row in rows:
        link = Linked(
            subscriptions.find(row.number) or row.number, row.acked_record, row.acked_byte
        )
        link.is_explicit, link.is_glob, link.is_pending = astuple(row)[3:]
        found.append(link)
    return found


def fence_row(stream: Stream, subscriptions: Subscriptions) -> StreamFence:
    """What a stream's row has to say of its fence."""
    told, seal = subscriptions.fences.told, stream.fence.seal
    return StreamFence(
        tuple(rows_of.Mark(told(mark.of), *mark[1:]) for mark in stream.fence.marks),
        None if seal is None else rows_of.Seal(told(seal.of), *seal[1:]),
    )


def fence_of(row: StreamFence, subscriptions: Subscriptions) -> Fence:
    """The fence of a stream as a state has it."""
    marks = []
    for mark in row.marks:
        number, *rest = astuple(mark)
        marks.append(Mark(subscriptions.find(number) or number, *rest))
    seal = row.seal
    if seal is None:
        return Fence(tuple(marks))
    number, *rest = astuple(seal)
    return Fence(tuple(marks), Seal(subscriptions.find(number) or number, *rest))
