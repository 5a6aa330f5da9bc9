"""Membership: configurations by log index, what a majority of one is, and changes (thesis 4).

One configuration follows another by joint consensus (4.3): old and new voters decide together until
the joint configuration is committed; after that the new ones decide alone. So there are never two
disjoint majorities, whatever a change replaces at once, and changes need not go one node at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from streamd.raft.interface import InvalidConfiguration
from streamd.raft.messages import Configuration, Entry, EntryKind, HardState

# Goes into the same first write as the bootstrap entry, which has this term.
BOOTSTRAP_HARD_STATE = HardState(term=1)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Configuration)


def encode_configuration(configuration: Configuration) -> bytes:
    """The payload of a `CONFIGURATION` entry."""
    return _ENCODER.encode(configuration)


def decode_configuration(payload: bytes) -> Configuration:
    """Raises `msgspec.DecodeError` for a payload that this version did not write."""
    return _DECODER.decode(payload)


def departed(before: bytes, after: bytes) -> set[int]:
    """Members in the configuration `before` (empty: none) that are missing from the later `after`.

    Raises `msgspec.DecodeError`.
    """
    members = decode_configuration(before).members() if before else set()
    return members - decode_configuration(after).members()


def bootstrap_entry(
    voters: Iterable[int], addresses: tuple[tuple[int, str, str], ...] = ()
) -> Entry:
    """The first entry of a new group, to be stored together with `BOOTSTRAP_HARD_STATE`."""
    payload = encode_configuration(
        Configuration(voters=tuple(sorted(voters)), addresses=tuple(sorted(addresses)))
    )
    return Entry(1, BOOTSTRAP_HARD_STATE.term, EntryKind.CONFIGURATION, payload)


class ConfigurationHistory:
    """Configurations by the index of their entry; the last one *appended* is in force.

    `base` is the configuration as of `base_index`, below which nothing is ever truncated.
    """

    def __init__(self, base_index: int, base: Configuration) -> None:
        self._indexes = [base_index]
        self._configurations = [base]
        self.latest = base

    @property
    def latest_index(self) -> int:
        """The index of the entry with the latest configuration, or the base index."""
        return self._indexes[-1]

    def at(self, index: int) -> Configuration:
        """The configuration in force at `index`, which is not below the base index."""
        return self._configurations[max(0, bisect_right(self._indexes, index) - 1)]

    def append(self, entry: Entry) -> None:
        self._indexes.append(entry.index)
        self._configurations.append(decode_configuration(entry.payload))
        self.latest = self._configurations[-1]

    def truncate(self, from_index: int) -> None:
        """Forget configurations whose entries are removed from the end of the log."""
        while self._indexes[-1] >= from_index:
            self._indexes.pop()
            self._configurations.pop()
        self.latest = self._configurations[-1]

    def forget_before(self, index: int) -> None:
        """Make the configuration in force at `index` the base."""
        while len(self._indexes) > 1 and self._indexes[1] <= index:
            del self._indexes[0], self._configurations[0]


class Verdict(Enum):
    """What the votes so far decide."""

    WON = "won"
    LOST = "lost"
    PENDING = "pending"


def quorum_value(configuration: Configuration, value_of: Callable[[int], int]) -> int:
    """The highest value that a majority of each set of voters has reached.

    With match indexes as values, it is the index replicated to a quorum (thesis 3.6.2, 4.3).
    """
    value = _majority_value(configuration.voters, value_of)
    if configuration.voters_outgoing:
        value = min(value, _majority_value(configuration.voters_outgoing, value_of))
    return value


def _majority_value(voters: tuple[int, ...], value_of: Callable[[int], int]) -> int:
    if not voters:
        return 0
    return sorted(map(value_of, voters))[(len(voters) - 1) // 2]


def verdict(configuration: Configuration, votes: Mapping[int, bool]) -> Verdict:
    """The state of an election: won with a majority of each set, lost when one is out of reach."""
    verdicts = [_majority_verdict(configuration.voters, votes)]
    if configuration.voters_outgoing:
        verdicts.append(_majority_verdict(configuration.voters_outgoing, votes))
    if Verdict.LOST in verdicts:
        return Verdict.LOST
    return Verdict.PENDING if Verdict.PENDING in verdicts else Verdict.WON


def _majority_verdict(voters: tuple[int, ...], votes: Mapping[int, bool]) -> Verdict:
    majority = len(voters) // 2 + 1
    if sum(votes.get(voter, False) for voter in voters) >= majority:
        return Verdict.WON
    refused = sum(not votes.get(voter, True) for voter in voters)
    return Verdict.LOST if len(voters) - refused < majority else Verdict.PENDING


def checked(target: Configuration) -> Configuration:
    """`target` in canonical order. Raises `InvalidConfiguration`."""
    voters, learners = _ids("voters", target.voters), _ids("learners", target.learners)
    if not voters:
        raise InvalidConfiguration("a group needs at least one voter")
    if both := sorted({*voters} & {*learners}):
        raise InvalidConfiguration(f"{both} would be voters and learners at once")
    located = _ids("addresses", [node_id for node_id, _, _ in target.addresses])
    if strangers := sorted({*located} - {*voters, *learners}):
        raise InvalidConfiguration(f"there are addresses for {strangers}, which are no members")
    return Configuration(voters, (), learners, tuple(sorted(target.addresses)))


def _ids(what: str, ids: Sequence[int]) -> tuple[int, ...]:
    if len({*ids}) < len(ids):
        raise InvalidConfiguration(f"the {what} name a node twice: {sorted(ids)}")
    if min(ids, default=1) < 1:
        raise InvalidConfiguration(f"node ids begin at 1, the {what} are {sorted(ids)}")
    return tuple(sorted(ids))


def first_step(current: Configuration, target: Configuration) -> Configuration:
    """What to append to get from `current`, which is not joint, to a checked `target`.

    A node that leaves keeps its address: its vote counts until the joint configuration is
    committed.
    """
    if target.voters == current.voters:
        return target
    located = {node_id for node_id, _, _ in target.addresses}
    leaving = [
        address
        for address in current.addresses
        if address[0] not in located and address[0] in current.voters
    ]
    addresses = tuple(sorted([*target.addresses, *leaving]))
    return Configuration(target.voters, current.voters, target.learners, addresses)


def last_step(joint: Configuration) -> Configuration:
    """What to append once `joint` is committed."""
    members = {*joint.voters, *joint.learners}
    addresses = tuple(address for address in joint.addresses if address[0] in members)
    return Configuration(joint.voters, (), joint.learners, addresses)
