"""An interpreter for the files in `scripts/`.

A file is prose (lines that begin with #), commands, and after `----` what they answer, up to an
empty line. A command is a word, a node or a pair of nodes, and arguments; several may share one
block. Each node's disk and the network do nothing unless told to. See `COMMANDS` at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from streamd.raft.core import CoreRefused, RaftViolation, Ready, Settings
from streamd.raft.membership import decode_configuration, encode_configuration
from streamd.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Message,
    ReadReply,
    ReadRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from tests.raft.cluster import SimulatedDisk, SimulatedNode, bootstrapped_disk, settle

SEPARATOR = "----"
QUIET_AFTER = 100


class Script:
    """A cluster at the hands of a script."""

    def __init__(self) -> None:
        self.nodes: dict[int, SimulatedNode] = {}
        self.network: list[Message] = []
        self.settings = Settings()

    def run(self, command: str) -> list[str]:
        """Carry out one line; an error the core raises is part of the answer."""
        name, *arguments = command.split()
        try:
            return COMMANDS[name](self, *arguments)
        except (CoreRefused, RaftViolation) as error:
            return [f"{type(error).__name__}: {error}"]

    # -- setting the scene ----------------------------------------------------------------

    def set(self, name: str, value: str) -> list[str]:
        settings = {field: getattr(self.settings, field) for field in Settings.__struct_fields__}
        assert name in settings, f"no such setting: {name}"
        self.settings = Settings(**{**settings, name: int(value)})
        return []

    def nodes_(self, *node_ids: str) -> list[str]:
        """Start nodes that were bootstrapped as the voters of one group."""
        voters = [int(node_id) for node_id in node_ids]
        for voter in voters:
            disk = bootstrapped_disk(voters)
            self.nodes[voter] = SimulatedNode(voter, disk, self.settings, Random(voter))
        return []

    def node(self, node_id: str, *facts: str) -> list[str]:
        """Start one node from a disk with the given content: term=, vote=, log=, applied=,
        voters=, outgoing=, learners= (the last three as of the applied index), lost-below=
        (the node knows that its log had reached there once)."""
        given = dict(fact.split("=", 1) for fact in facts)
        disk = SimulatedDisk()
        log = [parse_entry(index, word) for index, word in enumerate(_words(given, "log"), 1)]
        disk.write(HardState(int(given.get("term", 0)), int(given.get("vote", 0))), log)
        voters, outgoing, learners = (
            tuple(map(int, _words(given, key))) for key in ("voters", "outgoing", "learners")
        )
        configuration = Configuration(voters, outgoing, learners)
        self.nodes[int(node_id)] = SimulatedNode(
            int(node_id),
            disk,
            self.settings,
            Random(int(node_id)),
            applied=int(given.get("applied", 0)),
            configuration=configuration,
            lost_below=int(given.get("lost-below", 0)),
        )
        return []

    # -- inputs of a node -----------------------------------------------------------------

    def tick(self, node_id: str, count: str = "1") -> list[str]:
        for _ in range(int(count)):
            self.nodes[int(node_id)].core.tick()
        return []

    def campaign(self, node_id: str) -> list[str]:
        """Let time pass for one node until its timer runs out and it campaigns."""
        core = self.nodes[int(node_id)].core
        core.tick()
        while core._roles.timer.elapsed:
            core.tick()
        return []

    def propose(self, node_id: str, *payloads: str) -> list[str]:
        core = self.nodes[int(node_id)].core
        indexes = core.propose([payload.encode() for payload in payloads])
        return [f"term {core.term}, index {', '.join(map(str, indexes))}"]

    def configure(self, node_id: str, configuration: str) -> list[str]:
        """Propose a configuration, written as in an entry."""
        core = self.nodes[int(node_id)].core
        index = core.propose_configuration(parse_configuration(configuration))
        return [f"term {core.term}, index {index}"]

    def transfer(self, node_id: str, to: str) -> list[str]:
        self.nodes[int(node_id)].core.transfer(int(to))
        return []

    def read(self, node_id: str, context: str) -> list[str]:
        self.nodes[int(node_id)].core.read(int(context))
        return []

    def local_read(self, node_id: str) -> list[str]:
        return [f"{self.nodes[int(node_id)].core.local_read_index()}"]

    def step(self, node_id: str, kind: str, *facts: str) -> list[str]:
        """Hand a node a message made by the script: `step 1 Heartbeat sender=2 term=5 ...`."""
        given = dict(fact.split("=", 1) for fact in facts)
        message_type = MESSAGE_TYPES[kind]
        values: dict[str, object] = {"to": int(node_id)}
        for name, value in given.items():
            values[name] = value == "yes" if value in ("yes", "no") else value
            if name == "entries":
                first = int(given["prev_index"]) + 1
                words = [word for word in value.split(",") if word]
                values[name] = [parse_entry(i, word) for i, word in enumerate(words, first)]
            elif value.isdecimal():
                values[name] = int(value)
        self.nodes[int(node_id)].core.step(message_type(**values))
        return []

    # -- actions of a node ----------------------------------------------------------------

    def ready(self, node_id: str) -> list[str]:
        """Take all Readies: apply, send, and begin the writes."""
        node = self.nodes[int(node_id)]
        lines = [line for ready in node.take_readies() for line in show_ready(ready)]
        self._collect(node)
        return lines or ["nothing"]

    def store(self, node_id: str, count: str = "1") -> list[str]:
        """Let the oldest writes reach the disk, and the core know."""
        node = self.nodes[int(node_id)]
        lines = []
        for _ in range(int(count)):
            node.write_one()
            ready = node.complete_one()
            lines.append(f"stored {show_completion(ready)}")
            lines += [f"send {show_message(message)}" for message in ready.messages_after_store]
        self._collect(node)
        return lines

    def snapshot(self, leader_id: str, peer: str) -> list[str]:
        """Install the leader's stored state at a peer, as its shell would; both learn of it."""
        leader, node = self.nodes[int(leader_id)], self.nodes[int(peer)]
        snapshot = leader.take_snapshot()
        if not node.core.begin_restore(snapshot.index, snapshot.term):
            answer = "has no use for it"
        else:
            settle(node)
            node.install(snapshot)
            answer = "is restored"
        self._collect(node)
        leader.core.snapshot_sent(node.node_id, snapshot.index)
        return [f"snapshot at {snapshot.term}/{snapshot.index}: node {peer} {answer}"]

    def begin_restore(self, node_id: str, index: str, term: str) -> list[str]:
        """Ask a node whether it will install a Raft snapshot; its log does not change until
        then."""
        agrees = self.nodes[int(node_id)].core.begin_restore(int(index), int(term))
        return ["yes" if agrees else "no"]

    def fail_snapshot(self, leader_id: str, peer: str) -> list[str]:
        self.nodes[int(leader_id)].core.snapshot_failed(int(peer))
        return []

    def _collect(self, node: SimulatedNode) -> None:
        self.network += node.outbox
        node.outbox = []

    def write(self, node_id: str) -> list[str]:
        """Let the oldest write reach the disk before the core knows: a crash follows."""
        return [f"written {show_completion(self.nodes[int(node_id)].write_one())}"]

    def crash(self, node_id: str) -> list[str]:
        """Lose power and come back with what was on disk."""
        self.nodes[int(node_id)].start()
        return []

    def store_state(self, node_id: str) -> list[str]:
        node = self.nodes[int(node_id)]
        node.store_state()
        return [f"applied index {node.stored.index} is stored"]

    def compact(self, node_id: str, through: str) -> list[str]:
        self.nodes[int(node_id)].disk.compact(int(through))
        return []

    # -- the network ----------------------------------------------------------------------

    def deliver(self, *pairs: str) -> list[str]:
        """Deliver what is on the way now, all of it or only `1->2`."""
        lines = []
        for message in self._take(pairs):
            lines.append(show_message(message))
            self.nodes[message.to].core.step(message)
        return lines or ["nothing"]

    def drop(self, *pairs: str) -> list[str]:
        """Lose what is on the way."""
        return [f"lost {show_message(message)}" for message in self._take(pairs)] or ["nothing"]

    def keep(self, *pairs: str) -> list[str]:
        """Deliver what is on the way and keep a copy there, to be delivered again."""
        kept = self._take(pairs)
        self.network += kept
        for message in kept:
            self.nodes[message.to].core.step(message)
        return [show_message(message) for message in kept]

    def _take(self, pairs: tuple[str, ...]) -> list[Message]:
        taken = [m for m in self.network if not pairs or f"{m.sender}->{m.to}" in pairs]
        self.network = [m for m in self.network if m not in taken]
        return taken

    def stabilize(self, *node_ids: str) -> list[str]:
        """Everything runs, among the given nodes or all, until nothing is left to do. Messages
        to others are lost. Answers the deliveries and reads only."""
        ids = [int(node_id) for node_id in node_ids] or list(self.nodes)
        lines = []
        for _ in range(QUIET_AFTER):
            busy = False
            for node_id in ids:
                node = self.nodes[node_id]
                while (readies := node.take_readies()) or node.writes:
                    busy = True
                    for ready in readies:
                        lines += [f"{node_id} reads {r.context} at {r.index}" for r in ready.reads]
                        lines += [f"{node_id} owes {p} a snapshot" for p in ready.snapshots]
                    while node.writes:
                        node.write_one()
                        node.complete_one()
                self._collect(node)
            for message in self._take(()):
                if message.sender in ids and message.to in ids:
                    busy = True
                    lines.append(show_message(message))
                    self.nodes[message.to].core.step(message)
            if not busy:
                return lines or ["nothing"]
        raise AssertionError("the nodes never come to rest")

    def quietly(self, name: str, *arguments: str) -> list[str]:
        """Carry out a command and keep its answer to oneself."""
        COMMANDS[name](self, *arguments)
        return []

    # -- looking --------------------------------------------------------------------------

    def status(self, *node_ids: str) -> list[str]:
        return [self._status(int(node_id)) for node_id in node_ids or map(str, self.nodes)]

    def _status(self, node_id: int) -> str:
        core = self.nodes[node_id].core
        return (
            f"{node_id}: {core.role.name} term={core.term} vote={core.hard_state.vote}"
            f" leader={core.leader_id} last={core.last_index} stable={core.stable_index}"
            f" commit={core.commit_index} applied={core.applied_index}"
        )

    def peers(self, node_id: str) -> list[str]:
        return [
            f"{peer}: {status.state} match={status.match_index} next={status.next_index}"
            f" heard={status.ticks_since_heard}"
            for peer, status in sorted(self.nodes[int(node_id)].core.peers().items())
        ]

    def configuration(self, *node_ids: str) -> list[str]:
        """The configuration in force, and the committed one if it is another."""
        lines = []
        for node_id in node_ids or map(str, self.nodes):
            core = self.nodes[int(node_id)].core
            line = f"{node_id}: {show_configuration(core.configuration) or 'none'}"
            if core.committed_configuration != core.configuration:
                committed = show_configuration(core.committed_configuration)
                line += f", committed {committed or 'none'}"
            lines.append(line)
        return lines

    def log(self, *node_ids: str) -> list[str]:
        lines = []
        for node_id in node_ids or map(str, self.nodes):
            core = self.nodes[int(node_id)].core
            first = self.nodes[int(node_id)].disk.first_index
            entries = [core.entry_at(index) for index in range(first, core.last_index + 1)]
            lines.append(f"{node_id}: {show_entries(entries)}")
        return lines

    def disk(self, node_id: str) -> list[str]:
        disk = self.nodes[int(node_id)].disk
        entries = disk.entries(disk.first_index, disk.last_index + 1, 1 << 30)
        state = disk.hard_state
        return [f"term={state.term} vote={state.vote} log {show_entries(entries)}"]


COMMANDS: dict[str, Callable[..., list[str]]] = {
    "set": Script.set,
    "nodes": Script.nodes_,
    "node": Script.node,
    "tick": Script.tick,
    "campaign": Script.campaign,
    "propose": Script.propose,
    "configure": Script.configure,
    "transfer": Script.transfer,
    "read": Script.read,
    "local-read": Script.local_read,
    "step": Script.step,
    "ready": Script.ready,
    "store": Script.store,
    "write": Script.write,
    "crash": Script.crash,
    "store-state": Script.store_state,
    "compact": Script.compact,
    "snapshot": Script.snapshot,
    "fail-snapshot": Script.fail_snapshot,
    "begin-restore": Script.begin_restore,
    "deliver": Script.deliver,
    "deliver-and-keep": Script.keep,
    "drop": Script.drop,
    "stabilize": Script.stabilize,
    "quietly": Script.quietly,
    "status": Script.status,
    "peers": Script.peers,
    "configuration": Script.configuration,
    "log": Script.log,
    "disk": Script.disk,
}

MESSAGE_TYPES: dict[str, Callable[..., Message]] = {
    "VoteRequest": VoteRequest,
    "VoteReply": VoteReply,
    "AppendRequest": AppendRequest,
    "AppendAccepted": AppendAccepted,
    "AppendRejected": AppendRejected,
    "Heartbeat": Heartbeat,
    "HeartbeatReply": HeartbeatReply,
    "TimeoutNow": TimeoutNow,
    "ReadRequest": ReadRequest,
    "ReadReply": ReadReply,
}


# -- writing and reading values ---------------------------------------------------------------


def _words(given: dict[str, str], key: str) -> list[str]:
    return [word for word in given.get(key, "").split(",") if word]


def parse_configuration(word: str) -> Configuration:
    """`1+2` are voters, `1+2&2+3` outgoing ones besides, `1+2/4` a learner besides."""
    deciding, _, learners = word.partition("/")
    voters, _, outgoing = deciding.partition("&")
    return Configuration(_ids(voters), _ids(outgoing), _ids(learners))


def _ids(word: str) -> tuple[int, ...]:
    return tuple(map(int, word.split("+"))) if word else ()


def show_configuration(configuration: Configuration) -> str:
    voters, outgoing, learners = (
        "+".join(map(str, ids))
        for ids in (configuration.voters, configuration.voters_outgoing, configuration.learners)
    )
    return voters + (f"&{outgoing}" if outgoing else "") + (f"/{learners}" if learners else "")


def parse_entry(index: int, word: str) -> Entry:
    """`3:x` is a command of term 3, `3` an empty entry, `3:=1+2` makes 1 and 2 the voters."""
    term, _, payload = word.partition(":")
    if payload.startswith("="):
        configuration = encode_configuration(parse_configuration(payload[1:]))
        return Entry(index, int(term), EntryKind.CONFIGURATION, configuration)
    kind = EntryKind.COMMANDS if payload else EntryKind.NOOP
    return Entry(index, int(term), kind, payload.encode())


def show_entry(entry: Entry) -> str:
    if entry.kind == EntryKind.CONFIGURATION:
        configuration = decode_configuration(entry.payload)
        return f"{entry.index}/{entry.term}:={show_configuration(configuration)}"
    if entry.kind == EntryKind.NOOP:
        return f"{entry.index}/{entry.term}"
    return f"{entry.index}/{entry.term}:{entry.payload.decode()}"


def show_entries(entries: list[Entry]) -> str:
    return " ".join(map(show_entry, entries)) or "empty"


def show_message(message: Message) -> str:
    fields = {
        name: getattr(message, name)
        for name in message.__struct_fields__
        if name not in ("sender", "to")
    }
    if "entries" in fields:
        fields["entries"] = f"[{' '.join(map(show_entry, fields['entries']))}]"
    for name in ("pre_vote", "transfer", "lost_entries", "round"):
        if not fields.get(name, True):
            del fields[name]
    fields.pop("life", None)  # any number: it differs between two lives
    name = type(message).__name__
    shown = {
        key: {True: "yes", False: "no"}[v] if v is True or v is False else v
        for key, v in fields.items()
    }
    facts = " ".join(f"{key}={value}" for key, value in shown.items())
    return f"{message.sender}->{message.to} {name} {facts}"


def show_completion(ready: Ready) -> str:
    term, index = ready.completion
    return f"term {term}, index {index}"


def show_ready(ready: Ready) -> list[str]:
    lines = []
    if ready.soft_state is not None:
        soft = ready.soft_state
        lines.append(f"now {soft.role.name} in term {soft.term}, leader {soft.leader_id}")
    if ready.hard_state is not None:
        lines.append(f"store term={ready.hard_state.term} vote={ready.hard_state.vote}")
    if ready.entries:
        lines.append(f"store {show_entries(ready.entries)}")
    lines += [f"send {show_message(message)}" for message in ready.messages]
    lines += [f"once stored, send {show_message(m)}" for m in ready.messages_after_store]
    if ready.committed:
        lines.append(f"apply {show_entries(ready.committed)}")
    lines += [f"send a snapshot to {peer}" for peer in ready.snapshots]
    lines += [f"read {read.context} at {read.index}" for read in ready.reads]
    return lines
