"""`python -m bench.state`: how fast the State Protocol materializes, each rate beside its bar.

Every rate is also shown as a multiple of the plain way, `json.loads` into a dict of dicts, measured
in the same run. Processor time is measured, not wall time, so a busy machine blurs them less.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import click
import msgspec

from bench.lines import Line, report
from streamd.state import MaterializedState, Policies, StateSchema, collection, decode_batch
from streamd.state.consumer import Consumer
from streamd.state.db import SQLite

_DATA_DIR = Path(__file__).parents[1] / "build" / "bench"
_EVENTS = 1_000_000
_EVENT_BYTES = 100
_KEYS = 100_000
_GROUPS = 1_000
_EVENTS_PER_BATCH = 10_000  # about 1 MiB, as a read returns


def batches(events: int) -> list[bytes]:
    """Updates of random entities, as reads return them."""
    random = Random(1)
    made = []
    for _ in range(events):
        head = b'{"type":"user","key":"%d","value":{"group":%d,"text":"' % (
            random.randrange(_KEYS),
            random.randrange(_GROUPS),
        )
        tail = b'"},"headers":{"operation":"update"}}'
        made.append(head + b"x" * (_EVENT_BYTES - len(head) - len(tail)) + tail)
    return [
        b"[" + b",".join(made[at : at + _EVENTS_PER_BATCH]) + b"]"
        for at in range(0, events, _EVENTS_PER_BATCH)
    ]


def plain(bodies: list[bytes]) -> object:
    """What a program does without a library."""
    state: dict[str, dict[str, object]] = {}
    for body in bodies:
        for event in json.loads(body):
            if event["headers"]["operation"] == "delete":
                state.get(event["type"], {}).pop(event["key"], None)
            else:
                state.setdefault(event["type"], {})[event["key"]] = event["value"]
    return state


def materialized(bodies: list[bytes]) -> object:
    """`MaterializedState`, in memory."""
    state = MaterializedState()
    for body in bodies:
        state.apply_batch(decode_batch(body))  # type: ignore[arg-type]  # all are changes
    return state


class Row(msgspec.Struct):
    """The value of an entity, as an application would declare it."""

    group: int
    text: str


class Rows(StateSchema):
    """One collection, with an index."""

    rows = collection(Row, type="user", indexes=["group"])


def into_tables(bodies: list[bytes]) -> object:
    """Typed and checked rows with an index, as a `StreamDB` keeps them."""
    consumer = Consumer(Rows, Policies())
    for body in bodies:
        consumer.apply(consumer.plan(body))
    return consumer


def into_sqlite(bodies: list[bytes]) -> object:
    """The same rows, each batch in SQLite before it shows."""
    consumer = Consumer(Rows, Policies())
    with tempfile.TemporaryDirectory(prefix="state-", dir=_DATA_DIR) as own:
        store = SQLite(Path(own) / "state.db")
        store.open("bench", "")
        for number, body in enumerate(bodies):
            plan = consumer.plan(body)
            store.commit(plan, str(number))
            consumer.apply(plan)
        store.close()
    return consumer


def rate(work: Callable[[list[bytes]], object], bodies: list[bytes], events: int) -> float:
    """Events per second of processor time."""
    started = time.process_time()
    work(bodies)
    return events / (time.process_time() - started)


def measure(events: int) -> Iterator[Line]:
    """All rates of one run."""
    _DATA_DIR.mkdir(parents=True, exist_ok=True)
    bodies = batches(events)
    baseline = rate(plain, bodies, events)
    yield Line("json.loads into a dict", baseline, "ev/s")
    memory = rate(materialized, bodies, events)
    yield Line("MaterializedState", memory, "ev/s", at_least=150_000)
    yield Line("MaterializedState / json.loads", memory / baseline, "x", at_least=1)
    tables = rate(into_tables, bodies, events)
    yield Line("typed rows with an index", tables, "ev/s", at_least=150_000)
    yield Line("typed rows with an index / json.loads", tables / baseline, "x")
    sqlite = rate(into_sqlite, bodies, events)
    yield Line("typed rows with an index, in SQLite too", sqlite, "ev/s", at_least=60_000)
    yield Line("typed rows with an index, in SQLite too / json.loads", sqlite / baseline, "x")


@click.command()
@click.option("--events", default=_EVENTS, show_default=True, help="Events of 100 B to apply.")
def main(events: int) -> None:
    """Measure how fast state is materialized."""
    report(measure(events))


if __name__ == "__main__":
    main()
