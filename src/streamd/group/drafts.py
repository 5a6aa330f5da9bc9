"""The content of a log entry, from the proposals that wait for one until it is applied."""

from __future__ import annotations

from collections.abc import Sequence

from streamd.group.packages import ForeignPackage, OwnPackage, OwnPackages
from streamd.group.proposals import (
    OutcomeUnknown,
    Proposal,
    ProposalQueue,
    Unavailable,
    fail_all,
    settle_all,
)
from streamd.group.session_opener import SessionOpener
from streamd.process.diagnostics import FillLevel
from streamd.raft.core import Core, Role
from streamd.streams.checks import is_of_leader
from streamd.streams.commands import Command, Outcome
from streamd.streams.sessions import PackageStamp


class Draft:
    """The content of the next log entry: proposals without a number, then packages of this
    node, then packages of other nodes."""

    def __init__(
        self,
        proposals: list[Proposal],
        own: list[OwnPackage],
        foreign: list[ForeignPackage],
        packages: OwnPackages,
    ) -> None:
        self.proposals = proposals
        self.foreign = foreign
        self._own = own
        self._packages = packages
        self.commands = [command for proposal in proposals for command in proposal.commands]
        self.stamps: list[PackageStamp] = []
        for package in own:
            self.commands += package.commands
            self.stamps.append(packages.stamp(package))
        for other in foreign:
            self.commands += other.commands
            self.stamps.append(other.stamp)

    def begin_with(self, proposal: Proposal) -> None:
        """Put a proposal in front of everything else."""
        self.proposals.insert(0, proposal)
        self.commands[:0] = proposal.commands

    def refused(self, error: Unavailable) -> None:
        """Fail or requeue the content: the core did not append the entry."""
        fail_all(self.proposals, error)
        fail_all(self.foreign, error)
        # Not failed: an earlier leader may have one in its log. "Never took effect" would be false
        # of that copy, and its client would write the same again.
        for package in self._own:
            self._packages.refused(package)


class Drafting:
    """Makes entries of what waits at the leader: first packages that are sent again, then new
    commands of this node and packages of others, which take turns at going first."""

    def __init__(
        self,
        core: Core,
        foreign: ProposalQueue[ForeignPackage],
        queue: ProposalQueue[Proposal],
        packages: OwnPackages,
        opener: SessionOpener,
    ) -> None:
        self._core = core
        self._queue = queue
        self._foreign = foreign
        self._packages = packages
        self._opener = opener
        # Commands that only the leader makes, from its own state. They need no number: the next
        # leader makes its own.
        self._leaders: list[Proposal] = []
        self._foreign_first = False

    @property
    def held(self) -> dict[str, FillLevel]:
        """How full the queues are."""
        commands, size = self._queue.held
        foreign, foreign_size = self._foreign.held
        return {
            "waiting_commands": commands,
            "waiting_command_bytes": size,
            "forwarded_commands": foreign,
            "forwarded_command_bytes": foreign_size,
        }

    def add(self, proposal: Proposal) -> None:
        """Queue a proposal for an entry. Raises `Unavailable`."""
        if not is_of_leader(proposal.commands[0]):
            self._queue.add(proposal)
        elif self._core.role == Role.LEADER:
            self._leaders.append(proposal)
        else:
            raise Unavailable("this node is not the leader")

    def add_foreign(self, package: ForeignPackage) -> None:
        """Queue another node's package for an entry. Raises `Unavailable`."""
        self._foreign.add(package)

    @property
    def has_waiting(self) -> bool:
        """Whether something waits for an entry. It may have to wait longer."""
        return bool(
            self._queue.waiting
            or self._foreign.waiting
            or self._leaders
            or self._opener.waiting
            or self._packages.has_waiting
        )

    def draft(self, max_commands: int, max_bytes: int) -> Draft | None:
        """The content of the next entry; None when nothing waits."""
        # In turns: while this node's clients fill every entry, those of the followers would wait
        # until their deadline if the same queue always went first.
        self._foreign_first = not self._foreign_first
        if not (
            self._opener.waiting
            or self._leaders
            or self._foreign.waiting
            or self._packages.has_waiting
        ):
            return self._draft_fresh(max_commands, max_bytes)
        proposals = self._opener.take() + self._leaders
        self._leaders = []
        own = self._packages.take_waiting(max_commands, max_bytes)
        max_commands -= sum(package.count for package in own)
        max_bytes -= sum(package.size for package in own)
        fresh: list[Proposal] = []
        foreign: list[ForeignPackage] = []
        for takes_foreign in (self._foreign_first, not self._foreign_first):
            # A command may be larger than an entry should be. It goes alone then: it would never
            # fit beside another, and those after it would wait for it.
            must = not (own or fresh or foreign)
            if takes_foreign:
                foreign = self._foreign.take(max_commands, max_bytes, at_least_one=must)
                max_commands -= sum(package.count for package in foreign)
                max_bytes -= sum(package.size for package in foreign)
            elif self._queue.waiting and self._takes_fresh:
                fresh = self._queue.take(max_commands, max_bytes, at_least_one=must)
                max_commands -= sum(proposal.count for proposal in fresh)
                max_bytes -= sum(proposal.size for proposal in fresh)
        if fresh and self._numbers:
            own.append(self._packages.pack(fresh))
        else:
            proposals += fresh
        if not (proposals or own or foreign):
            return None
        return Draft(proposals, own, foreign, self._packages)

    def _draft_fresh(self, max_commands: int, max_bytes: int) -> Draft | None:
        """Draft like `draft`, if only new commands of this node wait: always so on a single node,
        and mostly on others."""
        if not (self._queue.waiting and self._takes_fresh):
            return None
        fresh = self._queue.take(max_commands, max_bytes)
        if self._numbers:
            return Draft([], [self._packages.pack(fresh)], [], self._packages)
        return Draft(fresh, [], [], self._packages)

    def expire(self, now: float) -> None:
        """Fail everything that has waited past its deadline."""
        self._queue.expire(now)
        self._foreign.expire(now)
        self._packages.expire(now)

    def leadership_lost(self) -> None:
        """Fail the commands that only the leader may propose; other nodes turn to the next
        leader."""
        elsewhere = Unavailable("this node is no longer the leader")
        # Not the queue of this node's own commands: `Forwarding` sends those to the next leader.
        self._foreign.refuse_all(elsewhere)
        fail_all(self._opener.take() + self._leaders, elsewhere)
        self._leaders = []

    @property
    def _numbers(self) -> bool:
        """Whether new commands of this node get a number."""
        return bool(self._packages.session_id) and self._opener.is_needed

    @property
    def _takes_fresh(self) -> bool:
        """Whether new commands may be drafted: not while this node opens a session that it needs,
        nor while the state remembers as many of its packages as it can."""
        if not self._opener.is_needed:
            return True
        if self._packages.session_id:
            # The state remembers so many packages of a node and admits no other: one more would
            # cost this node its session, and the clients of all undecided packages their outcomes.
            return self._packages.has_room
        # Without a number a command cannot be sent again: if this leader were deposed now, its
        # outcome would be unknown, for want of a session that opens in a moment.
        return self._opener.is_refused


class PendingEntry:
    """The commands of an entry and the proposals that wait for them, kept until an entry commits
    at its index. `proposals` wait for the first commands, `foreign` for the last packages."""

    __slots__ = ("commands", "foreign", "now_ms", "packages", "proposals", "term")

    def __init__(
        self,
        term: int,
        now_ms: int,
        commands: list[Command],
        packages: Sequence[PackageStamp],
        proposals: Sequence[Proposal] = (),
        foreign: Sequence[ForeignPackage] = (),
    ) -> None:
        self.term = term
        self.now_ms = now_ms
        self.commands = commands
        self.packages = packages
        self.proposals = proposals
        self.foreign = foreign

    def fail(self, error: Unavailable | OutcomeUnknown) -> None:
        """Fail what waits, except packages of this node, which are sent again."""
        fail_all(self.proposals, error)
        fail_all(self.foreign, error)
        self.proposals = self.foreign = ()

    def settle(self, outcomes: Sequence[Outcome], node_id: int, own: OwnPackages) -> None:
        """Settle the proposals with the outcomes of their commands.

        This node's own packages are decided here too, whichever leader proposed them: the node
        may apply the entry before that leader answers, and the answer may never come.
        """
        # The outcomes of the packages follow those of the proposals. An entry of another leader has
        # no proposals here at all, but maybe this node's packages.
        settle_all(self.proposals, outcomes)
        if not self.packages:
            return
        first_foreign = len(self.packages) - len(self.foreign)
        # Counted from the end: only the leader knew how many commands precede the packages.
        end = len(outcomes) - sum(stamp.count for stamp in self.packages)
        for place, stamp in enumerate(self.packages):
            start, end = end, end + stamp.count
            if stamp.node_id == node_id:
                own.decided(stamp.session_id, stamp.sequence, outcomes[start:end])
            if place >= first_foreign:
                self.foreign[place - first_foreign].settle(list(outcomes[start:end]))
