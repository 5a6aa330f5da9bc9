"""Ways to corrupt a good history, each with the anomaly that must be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.jepsen_like.findings import Anomaly
from tests.jepsen_like.history import (
    CLOSED,
    NOT_FOUND,
    STALE_EPOCH,
    UNKNOWN,
    Kind,
    Operation,
    Stamp,
)
from tests.jepsen_like.simulated import STREAM, SimulatedStream, Simulation, token

_SOME = 4


@dataclass
class World:
    """A finished simulation with a pause before its final reads, in which corruptions are
    planted."""

    history: list[Operation]
    stream: SimulatedStream
    choose: Callable[[int], int]
    moments: Iterator[int] = field(default_factory=lambda: iter(()))

    def plant(self, kind: Kind, **fields: object) -> Operation:
        """One more operation by a client of its own, in the pause."""
        moment = next(self.moments)
        operation = Operation(f"planted-{moment}", kind, moment, next(self.moments), "ok", STREAM)
        for name, value in fields.items():
            setattr(operation, name, value)
        self.history.append(operation)
        return operation

    def finals(self) -> list[Operation]:
        return [operation for operation in self.history if operation.kind == "final_read"]

    def extend(self, payload: str) -> str:
        """Lets all final reads end with a payload; returns the offset after it."""
        stream = self.stream
        stream.pieces.append(payload)
        stream.ends.append(stream.ends[-1] + len(payload))
        for final in self.finals():
            final.data, final.next_offset = stream.content(), stream.tail
        return stream.tail

    def pick(self, accept: Callable[[Operation], bool]) -> Operation:
        suitable = [operation for operation in self.history if accept(operation)]
        return suitable[self.choose(len(suitable))]

    def early(self) -> int:
        """The number of one of the first records."""
        return self.choose(_SOME)


def good_world(choose: Callable[[int], int], steps: int, is_closed: bool) -> World:
    """A few operations of each kind, some at random, and a close if wanted."""
    simulation = Simulation(choose)
    for epoch in range(2):
        stamp = Stamp("z", epoch, 0)
        simulation.do("setup", "append", payload=simulation.payload(), stamp=stamp)
    for _ in range(_SOME):
        simulation.do("setup", "append", payload=simulation.payload())
        simulation.do("setup", "read", offset=simulation.stream.token(0))
        simulation.do("setup", "head")
    for _ in range(steps):
        simulation.step(may_close=False)
    if is_closed:
        simulation.do("closer", "close")
    pause_ns = simulation.pause()
    history = simulation.finish()
    return World(history, simulation.stream, choose, iter(range(pause_ns, pause_ns + 80)))


Plant = Callable[[World], object]
OPEN: list[tuple[Anomaly, Plant]] = []
CLOSED_STREAM: list[tuple[Anomaly, Plant]] = []


def _plant(
    anomaly: Anomaly, catalogue: list[tuple[Anomaly, Plant]] = OPEN
) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        catalogue.append((anomaly, plant))
        return plant

    return register


def _is_plain_append(operation: Operation) -> bool:
    return operation.kind == "append" and operation.outcome == "ok" and operation.stamp is None


def _has_data(operation: Operation) -> bool:
    return operation.kind in ("read", "deliver") and len(operation.data) > 0


@_plant(Anomaly.LOST_WRITE)
def two_appends_acknowledged_at_one_offset(world: World) -> None:
    other = world.pick(_is_plain_append)
    payload = "<" + "x" * (len(other.payload) - 2) + ">"
    world.plant("append", payload=payload, next_offset=other.next_offset)


@_plant(Anomaly.LOST_WRITE)
def an_acknowledged_append_after_the_final_tail(world: World) -> None:
    tail = len(world.stream.content())
    end = token(len(world.stream.pieces) + 1, tail + len("<lost>"))
    world.plant("append", payload="<lost>", next_offset=end)


@_plant(Anomaly.DUPLICATE)
def an_append_twice_in_the_log(world: World) -> None:
    world.extend(world.pick(_is_plain_append).payload)


@_plant(Anomaly.EARLY_UNKNOWN)
def a_node_that_does_not_try_to_find_out(world: World) -> None:
    world.plant("append", payload="<given up>", outcome="unknown", refusal=UNKNOWN)


@_plant(Anomaly.INCONSISTENT_OFFSETS)
def an_append_told_a_wrong_offset(world: World) -> None:
    append = world.pick(_is_plain_append)
    record, _, byte = append.next_offset.partition("_")
    append.next_offset = token(int(record), int(byte) + 1)


@_plant(Anomaly.INCONSISTENT_OFFSETS)
def a_read_told_a_wrong_next_offset(world: World) -> None:
    read = world.pick(_has_data)
    record, _, byte = read.next_offset.partition("_")
    read.next_offset = token(int(record), int(byte) + 1)


@_plant(Anomaly.INCONSISTENT_OFFSETS)
def one_position_by_two_names(world: World) -> None:
    records = len(world.stream.pieces)
    world.plant("head", next_offset=token(records + 1, world.stream.ends[records]))


@_plant(Anomaly.INCONSISTENT_OFFSETS)
def an_append_seen_before_its_place(world: World) -> None:
    first, second, *_ = world.stream.pieces
    at = world.stream.ends[2]
    world.plant("read", offset=token(0, 0), data=second + first, next_offset=token(2, at))


@_plant(Anomaly.ABORTED_READ)
def a_refused_append_in_the_log(world: World) -> None:
    world.extend("<refused>")
    world.plant("append", payload="<refused>", outcome="fail", refusal="overloaded")


@_plant(Anomaly.ABORTED_READ)
def a_refused_append_seen_by_a_reader(world: World) -> None:
    world.plant("append", payload="<refused>", outcome="fail", refusal="overloaded")
    _see_past_the_tail(world, "<refused>")


def _see_past_the_tail(world: World, payload: str) -> None:
    record = world.early()
    data = "".join([*world.stream.pieces[record:], payload])
    end = token(len(world.stream.pieces) + 1, world.stream.ends[-1] + len(payload))
    world.plant("read", offset=world.stream.token(record), data=data, next_offset=end)


@_plant(Anomaly.PHANTOM_WRITE)
def bytes_that_nobody_sent(world: World) -> None:
    world.extend("?nobody?")


@_plant(Anomaly.PHANTOM_WRITE)
def an_append_missing_in_the_history(world: World) -> None:
    world.history.remove(world.pick(_is_plain_append))


@_plant(Anomaly.REORDERED_WRITE)
def an_append_sent_after_its_followers_were_done(world: World) -> None:
    append = world.pick(lambda o: _is_plain_append(o) and o.client == "setup")
    append.client = "late"
    append.invoked_ns, append.returned_ns = next(world.moments), next(world.moments)


@_plant(Anomaly.DIVERGED_REPLICA)
def a_node_with_a_changed_byte(world: World) -> None:
    _change_a_byte(world, world.pick(lambda o: o.kind == "final_read"))


@_plant(Anomaly.DIVERGED_REPLICA)
def a_node_that_lacks_the_last_record(world: World) -> None:
    final = world.pick(lambda o: o.kind == "final_read")
    records = len(world.stream.pieces) - 1
    final.data = "".join(world.stream.pieces[:records])
    final.next_offset = world.stream.token(records)


def _change_a_byte(world: World, read: Operation) -> None:
    at = world.choose(len(read.data))
    read.data = read.data[:at] + "?" + read.data[at + 1 :]


@_plant(Anomaly.CORRUPT_READ)
def a_read_with_a_changed_byte(world: World) -> None:
    _change_a_byte(world, world.pick(_has_data))


@_plant(Anomaly.NONMONOTONIC_POLL)
def a_delivery_from_before_the_reader(world: World) -> None:
    earlier = world.early()
    stood = world.stream.token(earlier + 1)
    data = world.stream.pieces[earlier]
    world.plant("deliver", offset=stood, data=data, next_offset=stood)


@_plant(Anomaly.NONMONOTONIC_POLL)
def an_empty_poll_that_goes_back(world: World) -> None:
    earlier = world.early()
    stood, told = world.stream.token(earlier + 1), world.stream.token(earlier)
    world.plant("deliver", offset=stood, next_offset=told)


@_plant(Anomaly.POLL_SKIP)
def a_delivery_that_leaves_a_record_out(world: World) -> None:
    record = world.early()
    stream = world.stream
    told, data = stream.token(record + 2), stream.pieces[record + 1]
    world.plant("deliver", offset=stream.token(record), data=data, next_offset=told)


@_plant(Anomaly.POLL_SKIP)
def an_empty_poll_that_goes_forward(world: World) -> None:
    record = world.early()
    stood, told = world.stream.token(record), world.stream.token(record + 1)
    world.plant("deliver", offset=stood, next_offset=told)


@_plant(Anomaly.STALE_READ)
def a_head_with_an_old_tail(world: World) -> None:
    world.plant("head", next_offset=world.stream.token(world.early()))


@_plant(Anomaly.STALE_READ)
def a_reader_told_that_it_is_up_to_date_too_early(world: World) -> None:
    record = world.early()
    told, data = world.stream.token(record + 1), world.stream.pieces[record]
    stood = world.stream.token(record)
    world.plant("read", offset=stood, data=data, next_offset=told, up_to_date=True)


@_plant(Anomaly.STALE_READ)
def a_tail_read_at_an_old_tail(world: World) -> None:
    told = world.stream.token(world.early())
    world.plant("read", offset="now", next_offset=told, up_to_date=True)


@_plant(Anomaly.STALE_READ, CLOSED_STREAM)
def a_closed_stream_seen_open(world: World) -> None:
    world.plant("head", next_offset=world.stream.tail)


@_plant(Anomaly.VANISHED_READ)
def an_append_seen_and_gone(world: World) -> None:
    world.plant("append", payload="<gone>", outcome="unknown")
    _see_past_the_tail(world, "<gone>")


@_plant(Anomaly.VANISHED_READ)
def a_tail_that_was_never_reached(world: World) -> None:
    beyond = token(len(world.stream.pieces) + 1, world.stream.ends[-1] + 3)
    world.plant("head", next_offset=beyond)


@_plant(Anomaly.TORN_READ)
def half_an_append_seen(world: World) -> None:
    stream = world.stream
    half = token(len(stream.pieces) - 1, stream.ends[-1] - 1)
    data = stream.pieces[-1][:-1]
    stood = stream.token(len(stream.pieces) - 1)
    world.plant("read", offset=stood, data=data, next_offset=half, up_to_date=True)


@_plant(Anomaly.WRITE_AFTER_CLOSE, CLOSED_STREAM)
def an_append_after_the_close(world: World) -> None:
    world.plant("append", payload="<after>", next_offset=world.extend("<after>"))


@_plant(Anomaly.LOST_CLOSE, CLOSED_STREAM)
def open_in_the_end(world: World) -> None:
    for final in world.finals():
        final.closed = False


@_plant(Anomaly.PHANTOM_CLOSE)
def a_reader_told_closed(world: World) -> None:
    world.plant("head", next_offset=world.stream.tail, closed=True)


@_plant(Anomaly.PHANTOM_CLOSE)
def an_append_refused_as_closed(world: World) -> None:
    world.plant("append", payload="<refused>", outcome="fail", refusal=CLOSED)


@_plant(Anomaly.PHANTOM_CLOSE)
def closed_in_the_end(world: World) -> None:
    for final in world.finals():
        final.closed = True


@_plant(Anomaly.INCONSISTENT_CLOSE, CLOSED_STREAM)
def told_closed_too_early(world: World) -> None:
    world.plant("head", next_offset=world.stream.token(world.early()), closed=True)


@_plant(Anomaly.STALE_EPOCH_ACCEPTED)
def a_zombie_that_still_writes(world: World) -> None:
    end = world.extend("<zombie>")
    world.plant("append", payload="<zombie>", stamp=Stamp("z", 0, 1), next_offset=end)


@_plant(Anomaly.SEQUENCE_GAP)
def a_sequence_number_left_out(world: World) -> None:
    end = world.extend("<gap>")
    world.plant("append", payload="<gap>", stamp=Stamp("z", 1, 2), next_offset=end)


@_plant(Anomaly.SEQUENCE_REUSED)
def a_sequence_number_used_twice(world: World) -> None:
    end = world.extend("<again>")
    world.plant("append", payload="<again>", stamp=Stamp("z", 1, 0), next_offset=end)


@_plant(Anomaly.PHANTOM_FENCING)
def fenced_by_nobody(world: World) -> None:
    stamp = Stamp("z", 1, 1)
    world.plant("append", payload="<f>", stamp=stamp, outcome="fail", refusal=STALE_EPOCH)


@_plant(Anomaly.USE_AFTER_DELETE)
def read_after_its_deletion(world: World) -> None:
    world.plant("delete")
    record = world.early()
    stood, told = world.stream.token(record), world.stream.token(record + 1)
    world.plant("read", offset=stood, data=world.stream.pieces[record], next_offset=told)


@_plant(Anomaly.LOST_STREAM)
def not_found_without_a_deletion(world: World) -> None:
    world.plant("head", outcome="fail", refusal=NOT_FOUND)
