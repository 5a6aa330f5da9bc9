"""A group of cores under a random schedule of faults, all of it replayable from one seed.

Nothing happens at the same time: at each step one node ticks, or takes its Readies, or its
disk finishes a write, or a message arrives, gets lost or arrives twice, or somebody changes the
members, or power fails. All invariants are checked after each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from zlib import crc32

import msgspec

from streamd.raft.core import CoreRefused, NotLeader, Overloaded, Role, Settings
from streamd.raft.messages import AppendRejected, Configuration, Message, VoteRequest
from tests.raft.cluster import RaftSnapshot, SimulatedDisk, SimulatedNode, bootstrapped_disk
from tests.raft.faults import Faults
from tests.raft.invariants import Checker, InvariantBroken

MAX_ON_THE_WAY = 80
HEALING_ROUNDS = 400


class Simulation:
    """One run. `counted` counts what the schedule caused; `digest` is of every message."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        founders = range(1, self.random.choice((1, 3, 3, 4, 5)) + 1)
        node_ids = range(1, len(founders) + self.random.choice((0, 1, 2)) + 1)
        self.disks: dict[int, SimulatedDisk] = {
            i: bootstrapped_disk(founders) if i in founders else SimulatedDisk() for i in node_ids
        }
        self.checker = Checker(self.disks)
        settings = Settings(
            election_timeout_ticks=self.random.choice((3, 8)),
            max_uncommitted_bytes=self.random.choice((20, 1000)),
            max_committed_bytes=self.random.choice((1, 30)),
            max_append_bytes=self.random.choice((1, 12, 1000)),
            max_appends_in_flight=self.random.choice((1, 2, 64)),
            max_in_flight_bytes=self.random.choice((1, 20, 1000)),
        )
        self.nodes = {
            i: SimulatedNode(i, disk, settings, Random(self.random.random()), self.checker)
            for i, disk in self.disks.items()
        }
        self.network: list[Message] = []
        self._overtaken = False
        # (leader, follower, Raft snapshot), and what a follower is installing.
        self.snapshots: list[tuple[int, int, RaftSnapshot]] = []
        self.installing: dict[int, tuple[int, RaftSnapshot]] = {}
        self.asked_at: list[int] = []  # the commit index when each read was requested
        self.counted: Counter[str] = Counter()
        self.digest = 0
        self.faults = Faults(list(node_ids), self.random, self.counted)
        self._weights = self._choose_weights()

    def _choose_weights(self) -> dict[Callable[[], None], float]:
        """Each seed has its own faults: faults that are rare everywhere would never be combined."""
        lossy, dies, splits = (self.random.choice((0, 0.2, 0.7)) for _ in range(3))
        stalls, pauses = (self.random.choice((0, 0, 0.2, 0.7)) for _ in range(2))
        moves, cuts = (self.random.choice((0, 0.3, 2)) for _ in range(2))
        return {
            self.tick: 25,
            self.take_readies: 30,
            self.write_one: 20,
            self.complete_one: 20,
            self.deliver: 70,
            self.duplicate: 5 * lossy,
            self.lose: 10 * lossy,
            self.propose: 10,
            self.read: 4,
            self.store_state: 2,
            self.compact: cuts,
            self.begin_install: 3,
            self.end_install: 2,
            self.configure: moves,
            self.transfer: moves,
            self.crash: dies,
            self.lose_entries: dies,
            self.lose_power: dies / 4,
            self.change_links: splits,
            self.change_disks: stalls,
            self.change_pauses: pauses,
        }

    def run(self, steps: int) -> None:
        """Take random steps, then heal and see that the group recovers."""
        actions = list(self._weights)
        for action in self.random.choices(actions, list(self._weights.values()), k=steps):
            action()
        self.heal()

    # -- what nodes do --------------------------------------------------------------------

    def tick(self) -> None:
        clocks = self.faults.clocks
        node = self.nodes[self.random.choices(list(clocks), list(clocks.values()))[0]]
        if node.node_id not in self.faults.paused:
            self._tick(node)

    def _tick(self, node: SimulatedNode) -> None:
        role, term = node.core.role, node.core.term
        node.core.tick()
        if role == Role.LEADER and node.core.role == Role.FOLLOWER:
            self.counted["leaders stepped down"] += 1
            self.counted["leaders with stalled disks stepped down"] += (
                node.core._writes.have_stalled and node.core.term == term
            )
        self._after(node)

    def take_readies(self) -> None:
        for node in self._any_awake():
            self._take_readies(node)

    def _take_readies(self, node: SimulatedNode) -> None:
        for ready in node.take_readies():
            self.digest = crc32(msgspec.msgpack.encode(ready), self.digest)
            if ready.entries and ready.entries[0].index <= node.disk.last_index:
                self.counted["suffixes replaced"] += 1
            for peer in ready.snapshots:
                self.snapshots.append((node.node_id, peer, node.take_snapshot()))
            for read in ready.reads:
                who = "leader" if node.core.role == Role.LEADER else "follower"
                self.counted[f"reads answered at a {who}"] += 1
                if read.index < self.asked_at[read.context]:
                    raise InvariantBroken(f"read {read} misses what was committed before it")
        self._after(node)

    def write_one(self) -> None:
        for node in self._any_awake():
            if node.written < len(node.writes) and node.node_id not in self.faults.stalled:
                node.write_one()

    def complete_one(self) -> None:
        for node in self._any_awake():
            if node.written:
                node.complete_one()
                self._after(node)

    def store_state(self) -> None:
        for node in self._any_awake():
            node.store_state()

    def compact(self) -> None:
        for node in self._any_awake():
            node.store_state()
            through = node.stored.index - self.random.randrange(4)
            if through >= node.disk.first_index and node.node_id not in self.installing:
                self.counted["compactions"] += 1
                node.disk.compact(through)

    # -- messages -------------------------------------------------------------------------

    def deliver(self) -> None:
        if self.network:
            at = self._any_message()
            if self.network[at].to not in self.faults.paused:
                self.counted["messages overtaken by others"] += at == 0 and self._overtaken
                self._overtaken = at > 0
                self._deliver(self.network.pop(at))

    def duplicate(self) -> None:
        if self.network:
            message = self.network[self._any_message()]
            if message.to not in self.faults.paused:
                self.counted["messages duplicated"] += 1
                self._deliver(message)

    def lose(self) -> None:
        if self.network:
            self.counted["messages lost"] += 1
            self.network.pop(self._any_message())

    def _deliver(self, message: Message) -> None:
        if (message.sender, message.to) in self.faults.cut:
            return
        self.digest = crc32(msgspec.msgpack.encode(message), self.digest)
        node = self.nodes[message.to]
        core = node.core
        role, term = core.role, core.term
        if isinstance(message, VoteRequest) and message.transfer and message.term > term:
            self.counted["campaigns by transfer"] += 1
        if isinstance(message, AppendRejected) and message.lost_entries and role == Role.LEADER:
            self.counted["confirmations taken back"] += 1
        core.step(message)
        if role == Role.LEADER and core.term > term:
            self.counted["leaders deposed"] += 1
        if role == Role.LEADER and core.role == Role.FOLLOWER and core.term == term:
            self.counted["leaders removed"] += 1
        self._after(node)

    # -- Raft snapshots -------------------------------------------------------------------

    def begin_install(self) -> None:
        if not self.snapshots:
            return
        leader, follower, snapshot = self.snapshots.pop(self.random.randrange(len(self.snapshots)))
        node = self.nodes[follower]
        fails = self.random.random() < 0.2 or (leader, follower) in self.faults.cut
        if fails or follower in self.faults.paused or follower in self.installing:
            self.counted["snapshots failed"] += 1
            self.nodes[leader].core.snapshot_failed(follower)
        elif node.core.begin_restore(snapshot.index, snapshot.term):
            self.installing[follower] = leader, snapshot
        else:
            self._report_snapshot(leader, follower, snapshot)

    def end_install(self) -> None:
        for follower, (leader, snapshot) in list(self.installing.items()):
            node = self.nodes[follower]
            del self.installing[follower]
            self._write_all(node)
            node.install(snapshot)
            self.counted["snapshots installed"] += 1
            self._after(node)
            self._report_snapshot(leader, follower, snapshot)

    def _report_snapshot(self, leader: int, follower: int, snapshot: RaftSnapshot) -> None:
        self.nodes[leader].core.snapshot_sent(follower, snapshot.index)
        self._after(self.nodes[leader])

    # -- clients and operators ------------------------------------------------------------

    def propose(self) -> None:
        for node in self._leaders():
            try:
                node.core.propose([b"%d" % self.counted["proposals"]])
                self.counted["proposals"] += 1
            except Overloaded:
                self.counted["proposals refused"] += 1
            except CoreRefused:
                self.counted["proposals refused during a transfer"] += 1
            self._after(node)

    def read(self) -> None:
        for node in self.nodes.values():
            try:
                node.core.read(len(self.asked_at))
            except NotLeader:
                continue
            self.asked_at.append(self.checker.committed_index)

    def configure(self) -> None:
        ids = list(self.nodes)
        voters = self.random.sample(ids, self.random.randint(1, len(ids)))
        learners = [
            node_id for node_id in ids if node_id not in voters and self.random.random() < 0.5
        ]
        if all(node.core.may_vote for node in self.nodes.values()):
            for node in self._leaders():
                self._configure(node, Configuration(tuple(voters), (), tuple(learners)))

    def _configure(self, node: SimulatedNode, target: Configuration) -> None:
        try:
            node.core.propose_configuration(target)
            self.counted["configurations proposed"] += 1
            self.counted["joint configurations"] += bool(node.core.configuration.voters_outgoing)
        except CoreRefused:
            self.counted["configurations refused"] += 1
        self._after(node)

    def transfer(self) -> None:
        for node in self._leaders():
            node.core.transfer(self.random.choice(node.core.configuration.voters))
            self._after(node)

    # -- faults ---------------------------------------------------------------------------

    def crash(self) -> None:
        self._crash(self._any_node())

    def _crash(self, node: SimulatedNode) -> None:
        self.counted["crashes"] += 1
        self.counted["writes lost"] += len(node.writes) - node.written
        interrupted = self.installing.pop(node.node_id, None)
        node.start()
        self._after(node)
        if interrupted is not None:
            self.counted["installs interrupted"] += 1
            self.nodes[interrupted[0]].core.snapshot_failed(node.node_id)

    def lose_power(self) -> None:
        self.counted["power losses"] += 1
        for node in self.nodes.values():
            self._crash(node)

    def lose_entries(self) -> None:
        """A disk comes back without the end of its log, and the node knows, if only about. Only
        while all
        others could elect a leader without it: nothing helps a group that lost its majority."""
        cores = [node.core for node in self.nodes.values()]
        enough = all(
            core.may_vote
            and len(core.configuration.voters) >= 3
            and len(core.configuration.voters_outgoing) in (0, 3, 4, 5, 6, 7)
            for core in cores
        )
        node = self._any_node()
        if enough and node.stored.index < node.disk.last_index:
            self.counted["entries lost"] += 1
            after = self.random.randrange(node.stored.index, node.disk.last_index)
            noted = self.random.randint(after + 1, node.disk.last_index)
            node.lose_entries(after, noted)
            self._crash(node)

    def change_links(self) -> None:
        self.faults.change_links([node.node_id for node in self._leaders()])

    def change_disks(self) -> None:
        self.faults.change_disks([node.node_id for node in self._leaders()])

    def change_pauses(self) -> None:
        self.faults.change_pauses([node.node_id for node in self._leaders()])

    # -- afterwards -----------------------------------------------------------------------

    def heal(self) -> None:
        """Without further faults, the group elects a leader and its members' logs get equal."""
        self.faults.heal()
        self.network.clear()
        proposed: set[int] = set()
        for _ in range(HEALING_ROUNDS):
            for node in self.nodes.values():
                self._tick(node)
                self._settle(node)
            self._propose_once_a_term(proposed)
            while self.network:
                self._deliver(self.network.pop(0))
                for node in self.nodes.values():
                    self._settle(node)
            self.begin_install()
            self.end_install()
            if proposed and self._has_converged():
                return
        raise InvariantBroken("the group does not recover")

    def _has_converged(self) -> bool:
        """All members have what the leader has, and nothing waits."""
        for leader in self._leaders():
            configuration = leader.core.configuration
            if configuration.voters_outgoing or leader.core.applied_index < leader.core.last_index:
                return False
            members = [self.nodes[member] for member in configuration.members()]
            return len({(node.applied, node.core.last_index) for node in members}) == 1 and all(
                node.core.may_vote for node in members
            )
        return False

    def _propose_once_a_term(self, proposed: set[int]) -> None:
        """And again while a log has not reached its former length, committed or not."""
        for node in self._leaders():
            members = node.core.configuration.members()
            all_trusted = all(self.nodes[member].core.may_vote for member in members)
            if node.core.transferring or (node.core.term in proposed and all_trusted):
                continue
            proposed.add(node.core.term)
            self.propose()

    def _settle(self, node: SimulatedNode) -> None:
        self._take_readies(node)
        while node.writes:
            self._write_all(node)
            self._take_readies(node)

    def _write_all(self, node: SimulatedNode) -> None:
        while node.writes:
            if node.written < len(node.writes):
                node.write_one()
            node.complete_one()
            self._after(node)

    # -- helpers --------------------------------------------------------------------------

    def _any_node(self) -> SimulatedNode:
        return self.nodes[self.random.randint(1, len(self.nodes))]

    def _any_awake(self) -> Iterator[SimulatedNode]:
        node = self._any_node()
        if node.node_id not in self.faults.paused:
            yield node

    def _leaders(self) -> list[SimulatedNode]:
        return [node for node in self.nodes.values() if node.core.role == Role.LEADER]

    def _any_message(self) -> int:
        """Usually an old message, sometimes any: messages overtake each other."""
        return int(self.random.random() ** 3 * len(self.network))

    def _after(self, node: SimulatedNode) -> None:
        self.network += node.outbox
        node.outbox.clear()
        del self.network[:-MAX_ON_THE_WAY]
        self.checker.after_event(node.core)


def run_seed(seed: int, steps: int) -> Simulation:
    """Raises with the line that replays it, whatever goes wrong."""
    simulation = Simulation(seed)
    try:
        simulation.run(steps)
    except Exception as error:
        replay = f"SEED={seed} .venv/bin/python -m pytest tests/raft/test_simulation.py"
        raise InvariantBroken(f"{error}\nreplay with: {replay}") from error
    return simulation
