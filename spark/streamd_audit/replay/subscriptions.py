"""What commands do to the subscriptions of a group (docs/subscriptions.md).

All subscriptions of a group are in one scope, with the streams that any of them may be about: what
happens to one may wake another, by way of a wake stream.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import msgspec

from streamd_audit import subscriptions as commands
from streamd_audit.commands import RenewIncarnations
from streamd_audit.replay import results
from streamd_audit.replay.fences import Fences
from streamd_audit.replay.globs import path_of
from streamd_audit.replay.ids import Ids, Place
from streamd_audit.replay.links import MAX_LINKS, Links
from streamd_audit.replay.model import Stream, is_json
from streamd_audit.replay.quotas import Quotas
from streamd_audit.replay.subscribed import Begun, Subscribed, retry_ms
from streamd_audit.replay.subscription_keys import with_key
from streamd_audit.subscriptions import Ack, Key, WakeStamp

_MAX_SUBSCRIPTIONS = 100_000
_MAX_NAMED, _MAX_NAMED_IN_ALL = 1_000, 250_000
_MAX_AT_CREATION = 1_000
# The number that is believed of a subscription whose own is not known when it is needed. As it is
# wrong, the scope is replayed with the right ones.
_NO_NUMBER = 0

_encode = msgspec.json.Encoder().encode


class _Event(msgspec.Struct, tag_field="type", tag="wake"):
    subscription_id: str
    stream: str
    generation: int
    ts: int


class Event(NamedTuple):
    """The event of a wake in its wake stream, as a record that begins at `start`."""

    stream: Stream
    start: tuple[int, int]
    size: int
    digests: bytes


class Streams(Protocol):
    """The streams of the scope."""

    ids: Ids
    quotas: Quotas
    streams: dict[bytes, Stream]

    def living(self, key: bytes) -> Stream | None:
        """A stream that can be used now; one that has expired ends."""

    def append_event(self, stream: Stream, record: bytes) -> None:
        """Append the event of a wake."""


class Subscriptions:
    """Applies commands about subscriptions, and what writes to streams mean to them.

    `changed` are subscriptions that something may have changed. `floor` is the highest generation
    of a deleted one.
    """

    def __init__(self, streams: Streams, version: int, floor: int, changed: set[bytes]) -> None:
        self._streams = streams
        self.floor = floor
        self.is_here = False
        self.keys: tuple[Key, ...] = ()
        self.by_id: dict[str, Subscribed] = {}
        self.changed: set[Subscribed] = set()
        self.links = Links(version, changed, self.changed)
        self.fences = Fences(self.links, self.find, self.number_of)
        self._by_number: dict[int, Subscribed] = {}
        self._owned: Counter[str] = Counter()
        self._unnumbered: list[Subscribed] = []
        self._waking: dict[bytes, set[Subscribed]] = {}
        self._place: Place = (0, 0)
        self._base = self._now_ms = 0
        self._handlers: dict[type, Callable[[Any], str]] = {
            commands.PutSubscription: self._put,
            commands.DeleteSubscription: self._delete,
            commands.LinkStreams: self._link,
            commands.UnlinkStream: self._unlink,
            commands.WakeSubscription: self._wake,
            commands.ClaimWake: self._claim,
            commands.AcknowledgeWake: self._acknowledge,
            commands.ReleaseWake: self._release,
            commands.VerifyClaim: self._verify,
            commands.AddSubscriptionKey: self._add_key,
            commands.BeginDelivery: self._begin_delivery,
            commands.EndDelivery: self._end_delivery,
            commands.EndLeases: self._end_leases,
            RenewIncarnations: self._renew,
        }

    def move_to(self, place: Place, base: int, now_ms: int) -> None:
        """Go on with the command at a place, at a log time, in the history with that base."""
        self._place, self._base, self._now_ms = place, base, now_ms

    def apply(self, command: commands.SubscriptionCommand | RenewIncarnations) -> str:
        """The outcome of a command."""
        self.is_here = True
        return self._handlers[type(command)](command)

    def take(self, one: Subscribed) -> None:
        """Take a subscription that was made, or that the state before the log has."""
        self.is_here = True
        self.by_id[one.subscription_id] = one
        self._owned[one.owner] += 1
        self._unnumbered.append(one)
        self.links.add(one)
        if one.config.wake_key:
            self._waking.setdefault(one.config.wake_key, set()).add(one)

    def number_of(self, one: Subscribed) -> int:
        """The number of a subscription, now that something depends on it."""
        if one.id is None:
            self.believe(one, _NO_NUMBER)
        assert one.id is not None
        return one.id

    def believe(self, one: Subscribed, number: int) -> None:
        """Take a number that a state names for that of a subscription."""
        self._streams.ids.believe(one, number)

    def find(self, number: int) -> Subscribed | None:
        """The subscription of a number."""
        for one in self._unnumbered:
            self._by_number[self.number_of(one)] = one
        self._unnumbered.clear()
        found = self._by_number.get(number)
        return found if found in self.links.living else None

    # -- what streams tell -----------------------------------------------------------------------

    def created(self, stream: Stream, has_records: bool) -> None:
        """A stream was made, with its links; it may be a wake stream."""
        if has_records:
            self.appended(stream)
        waiting = sorted(self._waking.get(stream.key, ()), key=lambda one: one.order)
        for one in waiting[:_MAX_AT_CREATION]:
            if one.wake is not None and one.lease_until_ms is None:
                one.is_received = False
                self._wake_idle(self._write(one))

    def appended(self, stream: Stream) -> None:
        """A stream whose links were looked at got records."""
        self._wake_idle(self.links.appended(stream))

    def ended(self, stream: Stream) -> None:
        """A stream came to its end."""
        self.links.drop_all(stream)
        self.fences.drop(stream)

    # -- wakes -----------------------------------------------------------------------------------

    def _wake_idle(self, some: Iterable[Subscribed]) -> None:
        waiting = deque(some)
        while waiting:
            one = waiting.popleft()
            if one.wake is None:
                self._begin(one)
                waiting.extend(self._write(one))

    def _wake_again(self, one: Subscribed) -> None:
        if one.wake is None and one.pending:
            self._wake_idle([one])

    def _begin(self, one: Subscribed, *, is_forced: bool = False) -> None:
        self.changed.add(one)
        generation = one.generation + 1
        wake = Begun(
            generation, self._place[0], self._base, "", self._now_ms, one.latest, is_forced
        )
        delay_ms = retry_ms(wake.id_of(self.number_of(one)), one.failures) if one.failures else 0
        one.begin(wake, delay_ms)

    def _retry_event(self, one: Subscribed) -> None:
        """Try again to write the event of a wake, if that is due."""
        if one.next_attempt_ms is not None and one.next_attempt_ms <= self._now_ms:
            self._wake_idle(self._write(one))

    def _write(self, one: Subscribed) -> list[Subscribed]:
        """Write the event of a wake; returns the subscriptions that have work by it."""
        if not one.is_pull:
            return []
        self.changed.add(one)
        one.attempts += 1
        assert one.wake is not None
        about = path_of(one.wake.key) if one.wake.key else ""
        event = _Event(one.subscription_id, about, one.generation, self._now_ms)
        record = _encode(event) + b","
        stream = self._streams.living(one.config.wake_key)
        why = self._no_event(stream, len(record))
        if stream is None or why:
            one.fail_attempt(why, self._now_ms, self.number_of(one))
            return []
        one.is_received = True
        one.thrive()
        has_links = self.links.look(stream)
        if stream.settings.write_fence:
            self.fences.settle(stream)
        self._streams.append_event(stream, record)
        return self.links.appended(stream) if has_links else []

    def _no_event(self, stream: Stream | None, size: int) -> str:
        """Why a wake stream does not take an event, in words; empty if it does."""
        if stream is None:
            return "the wake stream does not exist"
        if stream.closed:
            return "the wake stream is closed"
        if not is_json(stream.content_type):
            return "the wake stream is not of type application/json"
        full = self._streams.quotas.refusal(stream, size)
        return "" if full is None else f"the wake stream has no room: {full}"

    def _settled(self, one: Subscribed | None) -> Subscribed | None:
        """A subscription whose lease was ended if it had lapsed."""
        if one is not None and one.lease_until_ms is not None and not one.is_leased(self._now_ms):
            self.changed.add(one)
            if not one.is_pull and not one.is_received:
                one.fail()
            one.end()
            self._wake_again(one)
        return one

    # -- subscriptions ---------------------------------------------------------------------------

    def _put(self, command: commands.PutSubscription) -> str:
        named = sorted({*command.keys})
        digest = sha256(b"".join(b"%d " % len(key) + key for key in named)).digest()
        known = self.by_id.get(command.subscription_id)
        if known is not None:
            is_same = (known.config, known.named_digest) == (command.config, digest)
            return results.EXISTS if is_same else results.SUBSCRIPTION_EXISTS
        if command.config.wake_key in named:
            return results.INVALID
        if len(self.by_id) >= _MAX_SUBSCRIPTIONS:
            return results.TOO_MANY_SUBSCRIPTIONS
        if not self._streams.quotas.may_subscribe(command.owner, self._owned[command.owner]):
            return results.OWNS_TOO_MANY
        if self._are_too_many(set(), named):
            return results.TOO_MANY_LINKS
        one = Subscribed(
            self._place, None, command.subscription_id, command.config, digest, self._now_ms,
            self.floor, command.owner,
        )  # fmt: skip
        self._streams.ids.give(one)
        self.take(one)
        self.changed.add(one)
        self.links.version += bool(command.config.pattern)
        self._name(one, named)
        return results.CREATED

    def _delete(self, command: commands.DeleteSubscription) -> str:
        one = self._meant(command)
        if one is None:
            return results.SUBSCRIPTION_NOT_FOUND
        del self.by_id[command.subscription_id]
        self._owned[one.owner] -= 1
        self.floor = max(self.floor, one.generation)
        # So that streams lose their links to it when they are next written.
        self.links.version += 1
        self.fences.delete(one)
        self.links.remove(one)
        if one.config.wake_key:
            self._waking[one.config.wake_key].remove(one)
        self.changed.add(one)
        return results.DELETED

    def _meant(self, command: commands.OfOne) -> Subscribed | None:
        """The subscription that a command names, unless it names the number of another one."""
        one = self.by_id.get(command.subscription_id)
        if one is None or not command.number or self._streams.ids.match(one, command.number):
            return one
        return None

    def _link(self, command: commands.LinkStreams) -> str:
        one = self._settled(self._meant(command))
        if one is None:
            return results.SUBSCRIPTION_NOT_FOUND
        named = sorted({*command.keys})
        if one.config.wake_key in named:
            return results.INVALID
        if self._are_too_many(one.named, named):
            return results.TOO_MANY_LINKS
        self._name(one, named)
        return results.DONE

    def _unlink(self, command: commands.UnlinkStream) -> str:
        one = self._settled(self._meant(command))
        if one is None:
            return results.SUBSCRIPTION_NOT_FOUND
        self.changed.add(one)
        self.links.unname(one, command.key)
        stream = self._streams.living(command.key)
        if stream is None:
            return results.DONE
        self.links.refresh(stream)
        link = self.links.find(stream, one)
        if link is not None and link.is_glob:
            link.is_explicit = False
        elif link is not None:
            self.links.drop(stream, one)
            if stream.settings.write_fence:
                self.fences.unlink(stream, one)
        return results.DONE

    def _are_too_many(self, known: set[bytes], named: Iterable[bytes]) -> bool:
        new = [key for key in named if key not in known]
        return (
            len(known) + len(new) > _MAX_NAMED
            or self.links.named_count + len(new) > _MAX_NAMED_IN_ALL
            or any(map(self._is_linked_most, new))
        )

    def _is_linked_most(self, key: bytes) -> bool:
        stream = self._streams.streams.get(key)
        return len(self.links.naming.get(key, ())) >= MAX_LINKS or (
            stream is not None and len(stream.links) >= MAX_LINKS
        )

    def _name(self, one: Subscribed, named: Iterable[bytes]) -> None:
        for key in named:
            self.links.name(one, key)
            self.changed.add(one)
            stream = self._streams.living(key)
            if stream is not None:
                self.links.refresh(stream)

    # -- workers ---------------------------------------------------------------------------------

    def _wake(self, command: commands.WakeSubscription) -> str:
        one = self._settled(self._meant(command))
        if one is None:
            return results.SUBSCRIPTION_NOT_FOUND
        self.changed.add(one)
        if one.wake is None:
            self._begin(one, is_forced=True)
            self._wake_idle(self._write(one))
        elif one.next_attempt_ms is not None:
            one.next_attempt_ms = self._now_ms
            self._retry_event(one)
        return results.DONE

    def _claim(self, command: commands.ClaimWake) -> str:
        one = self._settled(self._meant(command))
        if one is None:
            return results.SUBSCRIPTION_NOT_FOUND
        if not one.is_pull:
            return results.NOT_PULL_WAKE
        if one.lease_until_ms is not None:
            return results.ALREADY_CLAIMED
        if self._has_nothing_to_do(one):
            return results.NO_PENDING_WORK
        if one.wake is None:
            self._begin(one, is_forced=not one.pending)
        one.holder = command.worker
        one.thrive()
        one.lease(self._now_ms)
        self.changed.add(one)
        return results.DONE

    def _has_nothing_to_do(self, one: Subscribed) -> bool:
        """Whether no worker is needed; a wake that is outstanding ends then."""
        is_writer = one.is_pull and one.fenced > 0
        if one.pending or is_writer or (one.wake is not None and one.wake.is_forced):
            return False
        one.end()
        self.changed.add(one)
        return True

    def _acknowledge(self, command: commands.AcknowledgeWake) -> str:
        one = self._stamped(command.subscription_id, command.stamp)
        if isinstance(one, str):
            return one
        for ack in command.acks:
            if not self._may_acknowledge(one, ack):
                return results.ACK_INVALID
        self._take_acks(one, command.acks)
        one.is_received = True
        one.thrive()
        one.lease(self._now_ms)
        if command.done:
            self._finish(one)
        return results.DONE

    def _release(self, command: commands.ReleaseWake) -> str:
        one = self._stamped(command.subscription_id, command.stamp)
        if isinstance(one, str):
            return one
        self._finish(one)
        return results.DONE

    def _stamped(self, subscription_id: str, stamp: WakeStamp) -> Subscribed | str:
        """The subscription whose outstanding wake a worker may act on, or the refusal."""
        one = self._settled(self.by_id.get(subscription_id))
        if one is None or not self._streams.ids.match(one, stamp.number):
            return results.SUBSCRIPTION_NOT_FOUND
        is_handed_out = one.lease_until_ms is not None if one.is_pull else one.attempts > 0
        wake = one.wake
        if wake is None or not is_handed_out or stamp.generation != one.generation:
            return results.FENCED
        return one if stamp.wake_id == wake.id_of(stamp.number) else results.FENCED

    def _may_acknowledge(self, one: Subscribed, ack: Ack) -> bool:
        stream = self._streams.living(ack.key)
        if stream is not None:
            self.links.look(stream)
        return self.links.may_acknowledge(stream, one, ack)

    def _take_acks(self, one: Subscribed, acks: Iterable[Ack]) -> None:
        self.changed.add(one)
        for ack in acks:
            stream = self._streams.living(ack.key)
            if stream is not None:
                self.links.acknowledge(stream, one, ack)

    def _finish(self, one: Subscribed) -> None:
        self.changed.add(one)
        one.end()
        self._wake_again(one)

    def _verify(self, command: commands.VerifyClaim) -> str:
        return self.fences.verify(command.stamp, self._now_ms)

    # -- the leader ------------------------------------------------------------------------------

    def _add_key(self, command: commands.AddSubscriptionKey) -> str:
        result, self.keys = with_key(self.keys, command, self._now_ms)
        return result

    def _renew(self, _: RenewIncarnations) -> str:
        # Another cluster goes on from here, and makes keys of its own.
        self.keys = ()
        return results.DONE

    def _begin_delivery(self, command: commands.BeginDelivery) -> str:
        one = self._settled(self.find(command.number))
        wake = None if one is None else one.wake
        if one is None or one.is_pull or wake is None or one.next_attempt_ms is None:
            return results.STALE
        is_next = command.attempt == one.attempts + 1 and one.next_attempt_ms <= self._now_ms
        if not is_next or command.wake_id != wake.id_of(self.number_of(one)):
            return results.STALE
        if self._has_nothing_to_do(one):
            return results.NO_PENDING_WORK
        one.attempts += 1
        one.next_attempt_ms = None
        one.lease(self._now_ms)
        self.changed.add(one)
        return results.DONE

    def _end_delivery(self, command: commands.EndDelivery) -> str:
        one = self._settled(self.find(command.number))
        wake = None if one is None else one.wake
        if one is None or wake is None or not 0 < command.attempt == one.attempts:
            return results.STALE
        if command.wake_id != wake.id_of(self.number_of(one)):
            return results.STALE
        self.changed.add(one)
        if not command.is_delivered:
            one.fail_attempt(command.why, self._now_ms, self.number_of(one))
            return results.DONE
        one.is_received = True
        one.thrive()
        if command.done:
            for ack in command.acks:
                if self._may_acknowledge(one, ack):
                    self._take_acks(one, [ack])
            self._finish(one)
        return results.DONE

    def _end_leases(self, command: commands.EndLeases) -> str:
        for number in command.numbers:
            one = self._settled(self.find(number))
            if one is not None:
                self._retry_event(one)
        return results.DONE
