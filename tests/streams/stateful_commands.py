"""Random commands of clients, applied by the machine and by plain lists."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

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
    FlushCold,
    Outcome,
    PublishSnapshot,
    Result,
    StorePart,
    Sweep,
    Touch,
)
from streamd.streams.content import split_body
from streamd.streams.model import (
    ForkRequest,
    IfMatch,
    ProducerStamp,
    Settings,
    VerifiedPosition,
    Version,
)
from streamd.streams.offsets import START, Position
from streamd.streams.state import Item
from tests.streams.driver import JSON, TEXT, Driver, key
from tests.streams.reference import Published, Reference, Stamp

NAMES = st.sampled_from(["a", "b", "c", "d"])
KINDS = st.sampled_from([TEXT, JSON])
TTLS = st.sampled_from([None, None, None, 50])
BODIES = {
    TEXT: st.binary(min_size=1, max_size=12),
    JSON: st.lists(st.integers(0, 10**6), min_size=1, max_size=4).map(msgspec.json.encode),
}
STAMPS = st.tuples(st.sampled_from("pq"), st.integers(0, 1), st.integers(0, 2))
SEQS = st.sampled_from(["1", "10", "2", "3"])


def records_of(kind: str, body: bytes) -> list[bytes]:
    data, lengths = split_body(kind, body)
    records = []
    for length in lengths:
        records.append(data[:length])
        data = data[length:]
    return records


class CommandRules(RuleBasedStateMachine):
    """Commands of clients, applied by the machine and by the lists."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.reference = Reference(self.driver.now_ms)
        # The log after the stored state: time, command and result.
        self.log: list[tuple[int, Command, Result]] = []
        self.flushing: list[Item] | None = None
        self.flushing_entries = 0
        # A pack that is in the cold store but not yet recorded in the log.
        self.pack: FlushCold | None = None
        # Positions verified earlier, perhaps of deleted streams.
        self.findings: dict[tuple[bytes, Position, int], VerifiedPosition] = {}
        # Versions of streams that clients have seen, most of them out of date.
        self.seen: list[Version] = []

    def apply(self, command: Command, expected: Result) -> Outcome:
        outcome = self.driver.do(command)
        self.log.append((self.driver.now_ms, command, outcome.result))
        assert outcome.result is expected
        return outcome

    @initialize(text=NAMES, json=NAMES)
    def begin(self, text: str, json: str) -> None:
        for name, kind in ((text, TEXT), (json, JSON)):
            expected = self.reference.create(name, kind, [], False, None)
            self.apply(Create(key(name), Settings(kind), implicit_bucket=True), expected)
        self.fill(text, TEXT, b"text")
        self.fill(text, TEXT, b"more")
        self.fill(json, JSON, b"[1, 22, 333]")

    def fill(self, name: str, kind: str, body: bytes) -> None:
        expected = self.reference.append(name, kind, records_of(kind, body), False, None, None)
        self.apply(Append(key(name), kind, *split_body(kind, body)), expected)

    def some_name(self, data: st.DataObject) -> str:
        """Usually the name of an existing stream."""
        there = sorted(self.reference.streams)
        return data.draw(st.sampled_from(there * 3 + ["a", "d"]))

    def some_condition(self, data: st.DataObject, name: str) -> IfMatch | None:
        """Usually no condition, else one that the stream meets or one that it may have met once."""
        kind = data.draw(st.sampled_from(["none", "none", "none", "any", "now", "before"]))
        if kind == "none":
            return None
        if kind == "any":
            return IfMatch()
        stream = self.driver.find(name)
        versions = data.draw(st.lists(st.sampled_from(self.seen), max_size=2)) if self.seen else []
        if kind == "now" and stream is not None:
            versions.append(stream.version())
        return IfMatch(tuple(versions))

    # -- commands -----------------------------------------------------------------------------

    @rule()
    def create_bucket(self) -> None:
        self.apply(CreateBucket(b"b"), self.reference.create_bucket())

    @rule()
    def delete_bucket(self) -> None:
        self.apply(DeleteBucket(b"b"), self.reference.delete_bucket())

    @rule(name=NAMES, kind=KINDS, data=st.data(), closed=st.booleans(), ttl_ms=TTLS)
    def create(
        self, name: str, kind: str, data: st.DataObject, closed: bool, ttl_ms: int | None
    ) -> None:
        body = data.draw(st.just(b"") | BODIES[kind])
        closed = closed and data.draw(st.booleans())
        implicit = data.draw(st.booleans())
        if_match = self.some_condition(data, name)
        expected = self.reference.create(
            name,
            kind,
            records_of(kind, body),
            closed,
            ttl_ms,
            implicit_bucket=implicit,
            if_match=if_match,
        )
        command = Create(
            key(name), Settings(kind, ttl_ms), closed, *split_body(kind, body), implicit, if_match
        )
        self.apply(command, expected)

    @precondition(lambda self: self.reference.streams)
    @rule(name=NAMES, data=st.data())
    def fork(self, name: str, data: st.DataObject) -> None:
        source = self.some_name(data)
        known = self.reference.streams.get(source)
        boundaries = [START] if known is None else known.boundaries
        anywhere = st.builds(Position, st.integers(0, 6), st.integers(0, 40))
        offset = data.draw(st.none() | st.sampled_from(boundaries) | anywhere)
        sub_offset = data.draw(st.just(0) | st.integers(0, 8))
        expected = self.reference.fork(name, source, offset, sub_offset)
        request = ForkRequest(key(source), offset, sub_offset)
        finding = self.driver.find_anchor(request)
        if offset is not None:
            self.findings.setdefault((key(source), offset, sub_offset), finding)
        command = Create(key(name), Settings(fork=request), implicit_bucket=True, finding=finding)
        self.apply(command, expected)

    @precondition(lambda self: self.findings)
    @rule(name=NAMES, data=st.data())
    def fork_by_an_old_finding(self, name: str, data: st.DataObject) -> None:
        """It is valid as long as the stream is the same; else the command must be made again."""
        asked = data.draw(st.sampled_from(sorted(self.findings)))
        source, offset, sub_offset = asked
        request = ForkRequest(source, offset, sub_offset)
        command = Create(
            key(name),
            Settings(fork=request),
            implicit_bucket=True,
            finding=self.findings[asked],
        )
        outcome = self.driver.do(command)
        self.log.append((self.driver.now_ms, command, outcome.result))
        if outcome.result is Result.STALE:
            # Looking streams up ends those that have expired.
            self.reference.look(name)
            finding = self.findings[asked] = self.driver.find_anchor(request)
            outcome = self.driver.do(replace(command, finding=finding))
            self.log.append((self.driver.now_ms, replace(command, finding=finding), outcome.result))
        source_name = keys.name_of(source).decode()
        assert outcome.result is self.reference.fork(name, source_name, offset, sub_offset)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data(), close=st.sampled_from([False, False, False, True]))
    def append(self, data: st.DataObject, close: bool) -> None:
        self.post(data, close, None, None)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data(), close=st.sampled_from([False, False, False, True]), stamp=STAMPS)
    def append_as_a_producer(self, data: st.DataObject, close: bool, stamp: Stamp) -> None:
        self.post(data, close, None, stamp)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data(), seq=SEQS, stamp=st.none() | STAMPS)
    def append_in_sequence(self, data: st.DataObject, seq: str, stamp: Stamp | None) -> None:
        self.post(data, False, seq, stamp)

    def post(self, data: st.DataObject, close: bool, seq: str | None, stamp: Stamp | None) -> None:
        name = self.some_name(data)
        known = self.reference.streams.get(name)
        kind = data.draw(KINDS) if known is None else known.kind
        if data.draw(st.integers(0, 9)) == 9:
            kind = TEXT if kind == JSON else JSON
        body = data.draw(BODIES[kind])
        if close and data.draw(st.booleans()):
            body = b""
        if_match = self.some_condition(data, name)
        expected = self.reference.append(
            name, kind, records_of(kind, body), close, seq, stamp, if_match
        )
        producer = None if stamp is None else ProducerStamp(*stamp)
        command = Append(key(name), kind, *split_body(kind, body), close, seq, producer, if_match)
        outcome = self.apply(command, expected)
        if expected is Result.DUPLICATE:
            assert known is not None
            assert stamp is not None
            remembered = known.producers[stamp[0]]
            own = stamp[2] == remembered.seq
            assert outcome.tail == (remembered.tail if own else known.tail)
        elif known is not None and outcome.incarnation:
            assert (outcome.tail, outcome.closed) == (known.tail, known.closed)
            assert outcome.incarnation == known.incarnation
            self.seen.append(known.version)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = self.some_name(data)
        if_match = self.some_condition(data, name)
        self.apply(Delete(key(name), if_match), self.reference.delete(name, if_match))

    # -- snapshots -----------------------------------------------------------------------

    def some_place(self, data: st.DataObject, name: str) -> Position:
        known = self.reference.streams.get(name)
        boundaries = [START] if known is None else known.boundaries
        anywhere = st.builds(Position, st.integers(0, 6), st.integers(0, 40))
        return data.draw(st.sampled_from(boundaries) | anywhere)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data(), body=st.binary(max_size=2), kind=KINDS)
    def publish(self, data: st.DataObject, body: bytes, kind: str) -> None:
        name = self.some_name(data)
        at = self.some_place(data, name)
        expected = self.reference.publish(name, Published(at, body, kind))
        finding = self.driver.find_boundary(key(name), at)
        command = PublishSnapshot(key(name), at, kind, len(body), body, 0, body, finding)
        self.apply(command, expected)

    @precondition(lambda self: self.reference.streams)
    @rule(data=st.data(), parts=st.lists(st.binary(min_size=1, max_size=2), max_size=3))
    def upload(self, data: st.DataObject, parts: list[bytes]) -> None:
        """An upload is published, removed, or abandoned."""
        name = self.some_name(data)
        at = self.some_place(data, name)
        expected = self.reference.begin_upload(name, at)
        finding = self.driver.find_boundary(key(name), at)
        begun = self.apply(BeginUpload(key(name), at, finding), expected)
        if expected is not Result.UPLOADING:
            return
        for number, part in enumerate(parts):
            self.apply(StorePart(begun.upload_id, number, part), Result.UPLOADING)
        self.apply(StorePart(begun.upload_id, len(parts) + 1, b"x"), Result.UPLOAD_LOST)
        body = b"".join(parts)
        fate = data.draw(st.sampled_from(["published", "published", "dropped", "left"]))
        if fate == "published":
            expected = self.reference.publish(name, Published(at, body, TEXT), uploaded=True)
            command = PublishSnapshot(
                key(name), at, TEXT, len(body), body, begun.upload_id, b"", finding
            )
            self.apply(command, expected)
        elif fate == "dropped":
            self.apply(DropUploads([begun.upload_id]), Result.DONE)

    @rule()
    def reclaim(self) -> None:
        self.driver.reclaim()

    @rule(data=st.data(), ms=st.integers(0, 60), swept=st.booleans())
    def time_passes(self, data: st.DataObject, ms: int, swept: bool) -> None:
        """A stream is read before, and expired streams may be swept up after."""
        name = self.some_name(data)
        stream = self.driver.find(name)
        if stream is not None:
            self.reference.touch(name)
            self.apply(Touch([(key(name), stream.stream_id, self.driver.now_ms)]), Result.DONE)
        self.driver.now_ms += ms
        self.reference.now_ms += ms
        if swept:
            self.reference.sweep()
            self.apply(Sweep([key(name) for name in "abcd"]), Result.DONE)
