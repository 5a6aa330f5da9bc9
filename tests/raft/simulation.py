"""A group of cores under a random schedule of faults, all of it replayable from one seed.

Nothing happens at the same time: at each step one node ticks, or takes its Readies, or its
disk finishes a write, or a message arrives, gets lost or arrives twice, or power fails. All
invariants are checked after each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from streamd.raft.core import NotLeader, Overloaded, RaftViolation, Role, Settings
from streamd.raft.invariants import Checker, InvariantBroken
from streamd.raft.messages import Message
from tests.raft.cluster import SimulatedDisk, SimulatedNode, bootstrapped_disk

MAX_ON_THE_WAY = 60
HEALING_ROUNDS = 400


class Simulation:
    """One run. `counted` says what the schedule brought about."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        node_ids = range(1, self.random.choice((3, 3, 4, 5)) + 1)
        self.disks: dict[int, SimulatedDisk] = {i: bootstrapped_disk(node_ids) for i in node_ids}
        self.checker = Checker(self.disks)
        settings = Settings(
            election_timeout_ticks=self.random.choice((3, 8)),
            max_uncommitted_bytes=self.random.choice((20, 1000)),
            max_committed_bytes=self.random.choice((1, 30)),
            max_append_bytes=self.random.choice((1, 12, 1000)),
            max_appends_in_flight=self.random.choice((1, 2, 64)),
        )
        self.nodes = {
            i: SimulatedNode(i, disk, settings, Random(self.random.random()), self.checker)
            for i, disk in self.disks.items()
        }
        self.network: list[Message] = []
        self.cut: set[tuple[int, int]] = set()
        self.clocks = [1.0] * len(self.nodes)
        self.asked_at: list[int] = []  # what was committed when each read was asked for
        self.counted: Counter[str] = Counter()
        # Each seed has faults of its own: what is rare everywhere is never combined.
        lossy, dies, splits = (self.random.choice((0, 0.2, 0.7)) for _ in range(3))
        self._weights: dict[Callable[[], None], float] = {
            self.tick: 25,
            self.take_readies: 30,
            self.write_one: 20,
            self.complete_one: 20,
            self.deliver: 70,
            self.duplicate: 5 * lossy,
            self.lose: 10 * lossy,
            self.propose: 10,
            self.read: 6,
            self.store_state: 2,
            self.crash: dies,
            self.lose_power: dies / 4,
            self.change_links: splits,
        }

    def run(self, steps: int) -> None:
        """Take random steps, then heal and see that the group recovers."""
        actions = list(self._weights)
        for action in self.random.choices(actions, list(self._weights.values()), k=steps):
            action()
        self.heal()

    # -- what may happen ------------------------------------------------------------------

    def tick(self) -> None:
        node = self.random.choices(list(self.nodes.values()), self.clocks)[0]
        node.core.tick()
        self._after(node)

    def take_readies(self) -> None:
        self._take_readies(self._any_node())

    def _take_readies(self, node: SimulatedNode) -> None:
        for ready in node.take_readies():
            if ready.entries and ready.entries[0].index <= node.disk.last_index:
                self.counted["suffixes replaced"] += 1
            for read in ready.reads:
                self.counted["reads answered"] += 1
                if read.index < self.asked_at[read.context]:
                    raise InvariantBroken(f"read {read} misses what was committed before it")
        self._after(node)

    def write_one(self) -> None:
        node = self._any_node()
        if node.written < len(node.writes):
            node.write_one()

    def complete_one(self) -> None:
        node = self._any_node()
        if node.written:
            node.complete_one()
            self._after(node)

    def deliver(self) -> None:
        if self.network:
            self._deliver(self.network.pop(self._any_message()))

    def duplicate(self) -> None:
        if self.network:
            self.counted["messages duplicated"] += 1
            self._deliver(self.network[self._any_message()])

    def lose(self) -> None:
        if self.network:
            self.network.pop(self._any_message())

    def _deliver(self, message: Message) -> None:
        if (message.sender, message.to) in self.cut:
            return
        node = self.nodes[message.to]
        role, term = node.core.role, node.core.term
        node.core.step(message)
        if role == Role.LEADER and node.core.term > term:
            self.counted["leaders deposed"] += 1
        self._after(node)

    def propose(self) -> None:
        for node in self.nodes.values():
            if node.core.role == Role.LEADER:
                try:
                    node.core.propose([b"%d" % self.counted["proposals"]])
                    self.counted["proposals"] += 1
                except Overloaded:
                    self.counted["proposals refused"] += 1
                self._after(node)

    def read(self) -> None:
        for node in self.nodes.values():
            context = len(self.asked_at)
            try:
                node.core.read(context)
            except NotLeader:
                continue
            self.asked_at.append(self.checker.committed_index)

    def store_state(self) -> None:
        self._any_node().store_state()

    def crash(self) -> None:
        node = self._any_node()
        self.counted["crashes"] += 1
        self.counted["writes lost"] += len(node.writes) - node.written
        node.start()
        self._after(node)

    def lose_power(self) -> None:
        self.counted["power losses"] += 1
        for node in self.nodes.values():
            node.start()
            self._after(node)

    def change_links(self) -> None:
        """Cut one node off, or some directed links, or none; and change whose clock is slow."""
        pairs = [(a, b) for a in self.nodes for b in self.nodes if a != b]
        leaders = [n.node_id for n in self.nodes.values() if n.core.role == Role.LEADER]
        alone = self.random.choice(leaders or list(self.nodes))
        cuts: tuple[set[tuple[int, int]], ...] = (
            set(),
            {pair for pair in pairs if alone in pair},
            {pair for pair in pairs if alone == pair[0]},
            set(self.random.sample(pairs, len(pairs) // 3)),
        )
        self.cut = self.random.choice(cuts)
        self.counted["links cut"] += len(self.cut)
        self.clocks = [self.random.choice((0.1, 1, 1)) for _ in self.nodes]
        if self.cut:
            self.clocks[alone - 1] = 0.1

    # -- afterwards -----------------------------------------------------------------------

    def heal(self) -> None:
        """Without further faults, the group elects a leader and all logs become equal."""
        self.cut.clear()
        self.network.clear()
        proposed: set[int] = set()
        for _ in range(HEALING_ROUNDS):
            for node in self.nodes.values():
                node.core.tick()
                self._settle(node)
            self._propose_once_a_term(proposed)
            while self.network:
                self._deliver(self.network.pop(0))
                for node in self.nodes.values():
                    self._settle(node)
            ends = {(node.applied, node.core.last_index) for node in self.nodes.values()}
            if proposed and len(ends) == 1 and len(set(ends.pop())) == 1:
                return
        raise InvariantBroken("the group does not recover")

    def _propose_once_a_term(self, proposed: set[int]) -> None:
        for node in self.nodes.values():
            if node.core.role == Role.LEADER and node.core.term not in proposed:
                proposed.add(node.core.term)
                self.propose()

    def _settle(self, node: SimulatedNode) -> None:
        self._take_readies(node)
        while node.writes:
            if node.written < len(node.writes):
                node.write_one()
            node.complete_one()
            self._after(node)
            self._take_readies(node)

    # -- odds and ends --------------------------------------------------------------------

    def _any_node(self) -> SimulatedNode:
        return self.nodes[self.random.randint(1, len(self.nodes))]

    def _any_message(self) -> int:
        """Mostly an old one, sometimes any: messages overtake each other."""
        return int(self.random.random() ** 3 * len(self.network))

    def _after(self, node: SimulatedNode) -> None:
        self.network += node.outbox
        node.outbox.clear()
        del self.network[:-MAX_ON_THE_WAY]
        self.checker.after_event(node.core)
        if node.core.role == Role.LEADER:
            self.counted["leaders at work"] += 1


def run_seed(seed: int, steps: int) -> Simulation:
    """Raises with the seed in the message, whatever goes wrong; `SEED=n` replays it."""
    simulation = Simulation(seed)
    try:
        simulation.run(steps)
    except (AssertionError, RaftViolation) as error:
        raise InvariantBroken(f"{error} (replay with SEED={seed})") from error
    return simulation
