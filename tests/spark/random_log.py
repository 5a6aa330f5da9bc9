"""A random log of everything that commands can do, and the server's outcomes."""

from __future__ import annotations

from random import Random

from streamd.streams import keys
from streamd.streams.commands import (
    Append,
    BeginUpload,
    Command,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    DropUploads,
    EndProducers,
    OpenSession,
    Outcome,
    PublishSnapshot,
    SetLimits,
    StorePart,
    Sweep,
    Touch,
)
from streamd.streams.limits import Limits
from streamd.streams.model import ForkRequest, IfMatch, ProducerStamp, Settings
from streamd.streams.offsets import Position
from streamd.streams.sessions import PackageStamp
from streamd.streams.token_commands import CreateToken, RevokeToken, RotateToken
from tests.spark.plain_replay import LogEntry, StateRows
from tests.spark.random_subscriptions import RandomSubscriptions
from tests.streams.driver import Driver

TEXT = "text/plain"
BUCKETS = (b"one", b"two", b"three")


class RandomLog:
    """`log` has entries; `outcomes` those of each entry's commands, by its index; `states` are some
    states that the log led to."""

    def __init__(
        self,
        seed: int,
        entries: int,
        *,
        streams: int = 12,
        names: str = "s",
        wild: bool = True,
        quotas: bool = False,
        subscriptions: bool = False,
    ) -> None:
        self.random = Random(seed)
        self.quotas = quotas
        self.has_subscriptions = subscriptions
        self.wild = wild
        self.driver = Driver()
        self.log: list[LogEntry] = []
        self.outcomes: dict[int, list[Outcome]] = {}
        self.keys = [
            keys.stream_key(BUCKETS[number % 3], f"{names}{number}".encode())
            for number in range(streams)
        ]
        self.subscriptions = RandomSubscriptions(self.random, self.driver.state, self.keys)
        self.uploads: list[tuple[bytes, int, Position, int]] = []
        self.sessions: dict[int, int] = {}
        self.sequences = {1: 0, 2: 0}
        self.states: list[StateRows] = []
        self.sent: list[tuple[PackageStamp, list[Command]]] = []
        self.lives(entries)

    def lives(self, entries: int) -> None:
        """Append some entries."""
        for _ in range(entries):
            self.driver.now_ms += self.random.randrange(40)
            if self.random.random() < 0.02:
                node, nonce = self.random.choice((1, 2)), self.random.randrange(1 << 40)
                index = len(self.log) + 1
                replaces = self.sessions.get(node, 0)
                if self.random.random() < 0.2:
                    replaces += 1
                self.enter([OpenSession(node, nonce, replaces)])
                if self.outcomes[index][0].result.value == "done":
                    self.sessions[node] = index
                    self.sequences[node] = 0
                    self.sent.clear()
                continue
            if self.random.random() < 0.02:
                self.flush()
                self.enter([self.driver.gather(self.random.choice((50, 1 << 40)))])
                continue
            commands = [self.command() for _ in range(self.random.randrange(1, 4))]
            self.enter(commands, self.packages(commands))

    def flush(self) -> None:
        """Store the state, and keep a copy of it."""
        self.driver.flush()
        self.states.append(StateRows(len(self.log), dict(self.driver.store.rows)))

    def packages(self, commands: list[Command]) -> list[PackageStamp]:
        """Some commands as a package, new or sent again, after those of no package."""
        if not self.sessions or self.random.random() < 0.5:
            return []
        if self.sent and self.random.random() < 0.3:
            stamp, again = self.random.choice(self.sent[-5:])
            commands += again
            return [stamp]
        node = self.random.choice(sorted(self.sessions))
        self.sequences[node] += 1
        count = self.random.randrange(1, len(commands) + 1)
        lowest = max(0, self.sequences[node] - 3)
        stamp = PackageStamp(node, self.sessions[node], self.sequences[node], lowest, count)
        self.sent.append((stamp, commands[len(commands) - count :]))
        return [stamp]

    def enter(self, commands: list[Command], packages: list[PackageStamp] | None = None) -> None:
        index = len(self.log) + 1
        entry = LogEntry(index, 1, self.driver.now_ms, commands, packages or [])
        self.log.append(entry)
        machine = self.driver.machine
        self.outcomes[index] = machine.apply(index, 1, entry.now_ms, list(commands), entry.packages)
        for command, outcome in zip(commands, self.outcomes[index], strict=True):
            if isinstance(command, BeginUpload) and outcome.upload_id:
                self.uploads.append((command.key, outcome.upload_id, Position(*command.at), 0))

    def command(self) -> Command:
        random = self.random
        if self.has_subscriptions and random.random() < 0.3:
            return self.subscriptions.command(self.driver.now_ms)
        key = random.choice(self.keys)
        stream = self.driver.state.streams.get(key)
        if stream is None and random.random() < 0.7:
            return self.create(key)
        dice = random.random()
        if dice < 0.5:
            return self.append(key)
        if dice < 0.55:
            return self.create(key)
        if dice < 0.59:
            return Delete(key, self.condition(key))
        if dice < 0.66:
            owned = [0 if stream is None else stream.stream_id]
            if self.wild or random.random() < 0.05:
                owned.append(random.randrange(1, 30))
            other = random.choice(self.keys)
            reads = [(key, random.choice(owned), self.driver.now_ms), (other, 0, 5)]
            return Touch(reads)
        if dice < 0.7:
            return Sweep(random.sample(self.keys, 4))
        if dice < 0.705:
            return EndProducers(key, ["p", "q", "r", "nobody"])
        if self.quotas and dice < 0.715:
            return self.limiting()
        if random.random() < 0.05:
            return self.admission()
        if dice < 0.72 and (self.wild or random.random() < 0.1):
            return random.choice((CreateBucket, DeleteBucket))(random.choice(BUCKETS))
        if dice < 0.82 and self.uploads:
            return self.uploading()
        at = self.place(key)
        finding = self.driver.find_boundary(key, at)
        if dice < 0.9:
            return BeginUpload(key, at, finding)
        body = random.randbytes(random.randrange(3))
        return PublishSnapshot(key, at, TEXT, len(body), body, 0, body, finding)

    def uploading(self) -> Command:
        random = self.random
        number = random.randrange(len(self.uploads))
        key, upload_id, at, parts = self.uploads[number]
        dice = random.random()
        if dice < 0.5:
            self.uploads[number] = key, upload_id, at, parts + 1
            return StorePart(upload_id, parts if random.random() < 0.9 else 7, b"part")
        del self.uploads[number]
        if dice < 0.6:
            return DropUploads([upload_id, upload_id + 1], random.choice((0, 60)))
        if random.random() < 0.1:
            key = random.choice(self.keys)
        finding = self.driver.find_boundary(key, at)
        return PublishSnapshot(key, at, TEXT, 4 * parts, b"digest", upload_id, b"", finding)

    def limiting(self) -> SetLimits:
        random = self.random
        name = random.choice(("one", "two", "*"))
        if random.random() < 0.2:
            return SetLimits("bucket", name)
        quotas = [random.choice((None, None, 0, 30, 200)), random.choice((None, 3, 6))]
        quotas.append(random.choice((None, None, 20, 60)))
        return SetLimits("bucket", name, Limits(None, 5, None, None, None, *quotas))

    def admission(self) -> Command:
        """A command about a token, or about what an identity may use."""
        random = self.random
        token_id, digest, ttl_ms = random.randrange(6), random.randbytes(32), None
        if random.random() < 0.5:
            ttl_ms = random.randrange(2000)
        dice = random.random()
        if dice < 0.4:
            name = random.choice(("ci", "ops", "reader"))
            return CreateToken(token_id, name, digest, ["read:*"], ttl_ms, random.randbytes(32))
        if dice < 0.6:
            return RotateToken(token_id, digest, random.choice((0, 500)), ttl_ms, digest)
        if dice < 0.75:
            return RevokeToken(token_id)
        quota = Limits(max_subscriptions=random.randrange(4))
        limits = random.choice((None, Limits(random.randrange(1, 9)), quota))
        return SetLimits("identity", random.choice(("token:ci", "*")), limits)

    def create(self, key: bytes) -> Create:
        random = self.random
        implicit = random.random() < (0.7 if self.wild else 0.95)
        data = random.randbytes(random.randrange(4))
        lengths = [len(data)] if data else []
        if random.random() < 0.4:
            source = random.choice(self.keys)
            at = random.choice((None, self.place(source)))
            sub_offset = random.choice((0, 0, 0, 1))
            request = ForkRequest(source, at, sub_offset)
            finding = self.driver.find_anchor(request)
            ttl = random.choice((None, None, 90))
            settings = Settings(None, ttl, fork=request)
            return Create(key, settings, False, data, lengths, implicit, finding=finding)
        expiry = random.choice(((None, None), (90, None), (None, self.driver.now_ms + 300)))
        text = None if expiry[1] is None else "as given"
        settings = Settings(TEXT, expiry[0], text, expiry[1])
        closed = random.random() < 0.05
        return Create(key, settings, closed, data, lengths, implicit, self.condition(key, 0.05))

    def append(self, key: bytes) -> Append:
        random = self.random
        lengths = [random.randrange(1, 9) for _ in range(random.randrange(1, 4))]
        close = random.random() < 0.03
        if close and random.random() < 0.5:
            lengths = []
        producer = None
        if random.random() < 0.4:
            name = random.choice("pqr")
            stream = self.driver.state.streams.get(key)
            known = None
            if stream is not None:
                known = self.driver.state.producers.get(keys.producer_key(stream.stream_id, name))
            epoch, seq = (0, 0) if known is None else (known.epoch, known.seq + 1)
            if random.random() < 0.2:
                epoch, seq = random.randrange(2), random.randrange(4)
            producer = ProducerStamp(name, epoch, seq, random.random() < 0.9)
        seq_text = f"{random.randrange(1000):04d}" if random.random() < 0.1 else None
        kind = TEXT if random.random() < 0.95 else "text/html"
        data = random.randbytes(sum(lengths))
        return Append(key, kind, data, lengths, close, seq_text, producer, self.condition(key, 0.1))

    def condition(self, key: bytes, share: float = 0.2) -> IfMatch | None:
        stream = self.driver.state.streams.get(key)
        if self.random.random() > share:
            return None
        if stream is None or self.random.random() < 0.3:
            return IfMatch()
        return IfMatch((stream.version(),))

    def place(self, key: bytes) -> Position:
        """The start of some record of a stream, or a position that is not one."""
        stream = self.driver.state.streams.get(key)
        if stream is None or self.random.random() < 0.1:
            return Position(self.random.randrange(3), self.random.randrange(9))
        boundaries = [stream.earliest]
        while boundaries[-1] != stream.tail:
            boundaries.append(self.driver.read(stream, boundaries[-1], max_bytes=1).end)
        return self.random.choice(boundaries)
