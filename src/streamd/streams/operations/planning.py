"""The steps of an operation, as planned from what the leader knows of the cluster.

A plan names the steps in their order; `next_action` judges each of them again before it is begun.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from streamd.streams.operations.hosts import is_release
from streamd.streams.operations.model import MAX_STEPS, Arguments, Deed, Kind, Step, in_words

# A learner this close to the leader's log slows no one down as a voter.
CAUGHT_UP_ENTRIES = 1000


class Refused(Exception):
    """What was asked cannot be begun, or not in this state; the message says why."""


class Member(msgspec.Struct, frozen=True):
    """A member as the leader knows it.

    `may_vote` is False while it repairs its log. `incarnation` is the number of its process when it
    was last connected, and `log_format` what that understands; 0 if it was not met. `address` is
    that for its peers. `lag_entries` is how many entries its log lacks.
    """

    node_id: int
    is_voter: bool = True
    answers: bool = True
    may_vote: bool = True
    incarnation: int = 0
    lag_entries: int = 0
    release: str = ""
    log_format: int = 0
    disk_is_low: bool = False
    address: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it can elect a leader and commit, as a voter."""
        return self.answers and self.may_vote

    @property
    def is_well(self) -> bool:
        """Whether the cluster can count on it, and at once."""
        return self.is_whole and self.lag_entries <= CAUGHT_UP_ENTRIES


class Newcomer(msgspec.Struct, frozen=True):
    """A node that is to be added: the one that answered at a peer address."""

    address: str
    node_id: int
    log_format: int


class View(msgspec.Struct, frozen=True):
    """The cluster as its leader sees it.

    `is_settled`: the configuration in force is committed, and not a joint one. `level` is the
    feature level. `connected` are nodes with a connection, members or not. `archive_age_ms` is
    how long ago the archive had all of the log, None without one.
    """

    now_ms: int
    leader_id: int
    members: tuple[Member, ...]
    is_settled: bool = True
    level: int = 0
    connected: frozenset[int] = frozenset()
    archive_age_ms: int | None = None
    archive_limit_ms: int = 0
    newcomers: tuple[Newcomer, ...] = ()

    def member(self, node_id: int) -> Member | None:
        return next((one for one in self.members if one.node_id == node_id), None)

    @property
    def voters(self) -> frozenset[int]:
        return frozenset(one.node_id for one in self.members if one.is_voter)

    @property
    def learners(self) -> frozenset[int]:
        return frozenset(one.node_id for one in self.members if not one.is_voter)

    @property
    def common_level(self) -> int:
        """What every member understands; 0 if one was not met."""
        return min((one.log_format for one in self.members), default=0)


def plan(kind: Kind, arguments: Arguments, view: View) -> tuple[Step, ...]:
    """The steps of an operation, the leader last. Raises `Refused`."""
    _check_arguments(kind, arguments)
    match kind:
        case "rolling-restart":
            steps = list(_restarts(view, ""))
        case "upgrade":
            steps = [*_restarts(view, arguments.release), Step("raise-features")]
        case "scale-up" | "bootstrap":
            steps = [
                step for one in _newcomers(arguments, view) for step in _additions(one, replacing=0)
            ]
        case "replace-node":
            steps = list(_replacement(arguments, view))
        case "scale-down":
            steps = list(_removal(arguments.node_id, view))
        case _:
            node_id = _member_id(arguments, view)
            deed: Deed = "stop" if kind == "drain" else "restart"
            steps = [*_handover(node_id, view), Step(deed, node_id)]
    for step in steps:
        everyone = frozenset(one.node_id for one in after(step, view).members)
        if short := quorum_lost(step, view, everyone):
            raise Refused(short)
        view = after(step, view)
    if len(steps) > MAX_STEPS:
        raise Refused(f"{len(steps)} steps are too many for one operation")
    return tuple(steps)


_TAKES: dict[Kind, tuple[str, ...]] = {
    "rolling-restart": (),
    "replace-node": ("node_id", "addresses"),
    "scale-up": ("addresses",),
    "scale-down": ("node_id",),
    "upgrade": ("release",),
    "drain": ("node_id",),
    "restart-recovery": ("node_id",),
    "bootstrap": ("addresses",),
}


def _check_arguments(kind: Kind, arguments: Arguments) -> None:
    given = {name for name in ("node_id", "addresses", "release") if getattr(arguments, name)}
    wanted = set(_TAKES[kind])
    if given != wanted:
        named = ", ".join(sorted(wanted)) or "no node, address or release"
        raise Refused(f"{kind} takes {named}")
    if kind in ("replace-node", "scale-up") and len(arguments.addresses) != 1:
        raise Refused(f"{kind} takes one address")
    if arguments.release and not is_release(arguments.release):
        raise Refused(f"{arguments.release!r} names no release: it can have A-Z a-z 0-9 . _ + -")
    if len(set(arguments.addresses)) != len(arguments.addresses):
        raise Refused("an address is given twice")


def _restarts(view: View, release: str) -> Iterator[Step]:
    """Restart all members, after an installation if a release is given: learners first, the
    leader last. Those that run the release already are left alone."""
    order = sorted(
        view.members, key=lambda one: (one.node_id == view.leader_id, one.is_voter, one.node_id)
    )
    for member in order:
        if release and member.release == release:
            continue
        if release:
            yield Step("install", member.node_id, release=release)
        yield from _handover(member.node_id, view)
        yield Step("restart", member.node_id, release=release)


def _handover(node_id: int, view: View) -> Iterator[Step]:
    if node_id == view.leader_id:
        yield Step("transfer-leadership", node_id)


def _newcomers(arguments: Arguments, view: View) -> Iterator[Newcomer]:
    """The nodes that answer at the addresses. Raises `Refused`."""
    at = {one.address: one for one in view.newcomers}
    for address in arguments.addresses:
        found = at.get(address)
        if found is None:
            raise Refused(f"no node of this cluster answers at {address}")
        if view.member(found.node_id) is not None:
            raise Refused(f"node {found.node_id} at {address} is a member already")
        if found.log_format < view.level:
            raise Refused(
                f"node {found.node_id} at {address} understands log format {found.log_format}, and "
                f"the cluster's feature level is {view.level}; run the members' release on it"
            )
        yield found


def _additions(newcomer: Newcomer, *, replacing: int) -> Iterator[Step]:
    node_id = newcomer.node_id
    yield Step("add", node_id, newcomer.address)
    yield Step("catch-up", node_id)
    yield Step("promote", node_id, replacing=replacing)


def _replacement(arguments: Arguments, view: View) -> Iterator[Step]:
    old = _member_id(arguments, view)
    if old not in view.voters:
        raise Refused(f"node {old} is a learner; remove it by scale-down, and add the other")
    (newcomer,) = _newcomers(arguments, view)
    *before, promotion = _additions(newcomer, replacing=old)
    yield from before
    yield from _handover(old, view)
    yield promotion
    yield _stop(old, view)


def _removal(node_id: int, view: View) -> Iterator[Step]:
    member = view.member(node_id)
    if member is None:
        raise Refused(f"node {node_id} is not a member")
    if view.voters == {node_id}:
        raise Refused("the last voter cannot be removed")
    yield from _handover(node_id, view)
    yield Step("remove", node_id)
    yield _stop(node_id, view)


def _stop(node_id: int, view: View) -> Step:
    """A step that knows the address of a node that will not be a member then."""
    member = view.member(node_id)
    return Step("stop", node_id, "" if member is None else member.address)


def _member_id(arguments: Arguments, view: View) -> int:
    """Raises `Refused` for a node that is not a member."""
    if view.member(arguments.node_id) is None:
        raise Refused(f"node {arguments.node_id} is not a member")
    return arguments.node_id


_ENDS_PROCESS: frozenset[Deed] = frozenset(("restart", "stop"))
_TAKES_VOTERS = _ENDS_PROCESS | {"promote", "remove"}


def quorum_lost(step: Step, view: View, well: frozenset[int]) -> str:
    """In words, how a step would leave less than a quorum of the voters, if only those in `well`
    count; empty if it would not."""
    if step.deed not in _TAKES_VOTERS:
        return ""
    voters = after(step, view).voters
    if step.deed not in _ENDS_PROCESS and voters == view.voters:
        return ""
    count = len((voters - {step.node_id} if step.deed in _ENDS_PROCESS else voters) & well)
    quorum = len(voters) // 2 + 1
    if count >= quorum:
        return ""
    return f"to {in_words(step)} would leave {count} of {len(voters)} voters; {quorum} are needed"


def after(step: Step, view: View) -> View:
    """The view once a step has taken effect, as far as it concerns who is a member."""
    others = tuple(one for one in view.members if one.node_id != step.node_id)
    match step.deed:
        case "add":
            return replace(view, members=(*others, Member(step.node_id, is_voter=False)))
        case "promote":
            kept = tuple(one for one in others if one.node_id != step.replacing)
            promoted = view.member(step.node_id) or Member(step.node_id)
            return replace(view, members=(*kept, replace(promoted, is_voter=True)))
        case "remove":
            return replace(view, members=others)
    return view
