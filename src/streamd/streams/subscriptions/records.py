"""All subscriptions in memory: made and changed by the log alone, over the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TypeVar

import msgspec

from streamd.streams import keys
from streamd.streams.subscriptions.due_times import DueTimes
from streamd.streams.subscriptions.globs import PatternIndex
from streamd.streams.subscriptions.link_rows import LinkRows
from streamd.streams.subscriptions.model import Subscription
from streamd.streams.subscriptions.paths import path_of
from streamd.streams.subscriptions.signing_keys import SubscriptionKey
from streamd.streams.tables import KeyValue

_ROWS_AT_ONCE = 1_000
_NONE: frozenset[int] = frozenset()
_NO_KEYS: frozenset[bytes] = frozenset()

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Subscription)
_KEY_DECODER = msgspec.msgpack.Decoder(SubscriptionKey)

K = TypeVar("K")
V = TypeVar("V")


class SubscriptionRecords:
    """The subscriptions by number and by id, the streams that they name, and the cluster's keys.

    A record handed out may be changed in place; `put` marks it to be stored, and must follow.
    `version` is another object after each change. `rows` list the linked streams, and `due` has the
    times at which something is to be done (`Subscription.due_ms`).
    """

    def __init__(self, store: KeyValue) -> None:
        """Blocks for reads: of all subscriptions, and of the streams that they name."""
        self.version = object()
        self.rows = LinkRows()
        self.due = DueTimes()
        self.patterns = PatternIndex()
        self._records: dict[int, Subscription] = {}
        self._ids: dict[str, int] = {}
        self._owned: Counter[str] = Counter()
        self._of_wake_streams: dict[bytes, set[int]] = {}
        self._named: dict[int, set[bytes]] = {}
        self._naming: dict[bytes, set[int]] = {}
        self._named_count = 0
        self._keys: dict[int, SubscriptionKey] = {}
        for _, raw in _stored(store, keys.SUBSCRIPTION):
            self._take(_DECODER.decode(raw))
        for row, _ in _stored(store, keys.NAMED):
            number, key = keys.stream_in(row)
            # Those of a deleted subscription wait for their removal.
            if number in self._records:
                self._name(number, key)
        for row, raw in _stored(store, keys.SUBSCRIPTION_KEY):
            self._keys[keys.parse_id(row)] = _KEY_DECODER.decode(raw)
        self._dirty: set[int] = set()
        self._dirty_names: dict[tuple[int, bytes], bool] = {}
        self._dirty_keys: set[int] = set()

    def __len__(self) -> int:
        return len(self._records)

    # -- records ------------------------------------------------------------------------------

    @property
    def records(self) -> Mapping[int, Subscription]:
        """All subscriptions by number, in the order in which they were made."""
        return self._records

    def get(self, number: int) -> Subscription | None:
        return self._records.get(number)

    def by_id(self, subscription_id: str, number: int = 0) -> Subscription | None:
        """The subscription that has the id now; with a `number`, only if it is that one."""
        found = self._ids.get(subscription_id, 0)
        return self._records.get(found) if number in (0, found) else None

    def owned_by(self, owner: str) -> int:
        """How many subscriptions an identity has made that exist."""
        return self._owned[owner]

    def waking_with(self, wake_key: bytes) -> Set[int]:
        """The numbers of those whose wake stream has that key."""
        return self._of_wake_streams.get(wake_key, _NONE)

    def put(self, subscription: Subscription) -> None:
        """Add a subscription, or note that it was changed."""
        if subscription.number not in self._records:
            self._take(subscription)
        self.due.set(subscription.number, subscription.due_ms)
        self._dirty.add(subscription.number)
        self.version = object()

    def delete(self, subscription: Subscription) -> None:
        """Forget a subscription, and the streams that it names; the rows about its streams are left
        to the background removal."""
        number = subscription.number
        del self._records[number], self._ids[subscription.subscription_id]
        if subscription.config.pattern:
            self.patterns.remove(number, subscription.config.pattern)
        for key in self._named.pop(number, ()):
            _remove(self._naming, key, number)
            self._named_count -= 1
        self._owned[subscription.owner] -= 1
        if not self._owned[subscription.owner]:
            del self._owned[subscription.owner]
        if subscription.config.wake_key:
            _remove(self._of_wake_streams, subscription.config.wake_key, number)
        self.due.set(number, None)
        self._dirty.add(number)
        self.version = object()

    def _take(self, subscription: Subscription) -> None:
        number, config = subscription.number, subscription.config
        self._records[number] = subscription
        self._ids[subscription.subscription_id] = number
        self._owned[subscription.owner] += 1
        if config.pattern:
            self.patterns.add(number, config.pattern)
        if config.wake_key:
            self._of_wake_streams.setdefault(config.wake_key, set()).add(number)
        self.due.set(number, subscription.due_ms)

    # -- streams ------------------------------------------------------------------------------

    @property
    def named_count(self) -> int:
        """How many streams all subscriptions name together."""
        return self._named_count

    def named_by(self, number: int) -> Set[bytes]:
        """The keys of the streams that a subscription names."""
        return self._named.get(number, _NO_KEYS)

    def naming(self, key: bytes) -> Set[int]:
        """The numbers of the subscriptions that name a stream."""
        return self._naming.get(key, _NONE)

    def matching(self, key: bytes) -> list[int]:
        """The numbers of those whose pattern matches a stream, in order."""
        return self.patterns.matching(path_of(key)) if len(self.patterns) else []

    def name(self, number: int, key: bytes) -> None:
        """Note that a subscription names a stream."""
        if key not in self.named_by(number):
            self._name(number, key)
            self._dirty_names[number, key] = True
            self.version = object()

    def unname(self, number: int, key: bytes) -> None:
        """Note that a subscription no longer names a stream."""
        if key in self.named_by(number):
            _remove(self._named, number, key)
            _remove(self._naming, key, number)
            self._named_count -= 1
            self._dirty_names[number, key] = False
            self.version = object()

    def _name(self, number: int, key: bytes) -> None:
        self._named.setdefault(number, set()).add(key)
        self._naming.setdefault(key, set()).add(number)
        self._named_count += 1

    # -- keys ---------------------------------------------------------------------------------

    @property
    def keys(self) -> Mapping[int, SubscriptionKey]:
        """The cluster's keys by number, in the order in which they were added."""
        return self._keys

    def keep_keys(self, kept: Iterable[SubscriptionKey]) -> None:
        """Replace the keys."""
        known, self._keys = self._keys, {key.number: key for key in kept}
        self._dirty_keys |= known.keys() ^ self._keys.keys()
        self.version = object()

    def forget_keys(self) -> None:
        """Forget all keys: another cluster makes its own."""
        self.keep_keys(())

    # -- storing ------------------------------------------------------------------------------

    @property
    def unstored(self) -> int:
        """How many rows wait to be stored."""
        return len(self._dirty) + len(self._dirty_names) + self.rows.count

    def begin_flush(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The rows to store, as of now."""
        dirty, self._dirty = self._dirty, set()
        for number in dirty:
            record = self._records.get(number)
            raw = None if record is None else _ENCODER.encode(record)
            yield keys.SUBSCRIPTION + keys.number(number), raw
        names, self._dirty_names = self._dirty_names, {}
        for (number, key), exists in names.items():
            yield keys.of_subscription(keys.NAMED, number, key), b"" if exists else None
        dirty, self._dirty_keys = self._dirty_keys, set()
        for number in dirty:
            found = self._keys.get(number)
            raw = None if found is None else _ENCODER.encode(found)
            yield keys.SUBSCRIPTION_KEY + keys.number(number), raw
        yield from self.rows.begin_flush()


def _stored(store: KeyValue, letter: bytes) -> Iterator[tuple[bytes, bytes]]:
    start, stop = letter, keys.end_of(letter)
    while rows := store.scan(start, stop, limit=_ROWS_AT_ONCE):
        yield from rows
        start = rows[-1][0] + b"\0"


def _remove(sets: dict[K, set[V]], place: K, one: V) -> None:
    """Remove one from the set at a place, and the set with its last."""
    left = sets[place]
    left.discard(one)
    if not left:
        del sets[place]
