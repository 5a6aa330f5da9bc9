"""Appends of one log entry are judged in runs, and come out as if each were judged alone."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamd.streams.commands import Append, Command, Create, Delete, Outcome
from streamd.streams.machine import Machine
from streamd.streams.model import IfMatch, ProducerStamp, Settings
from streamd.streams.state import State
from tests.streams.driver import JSON, TEXT, key
from tests.streams.memory_store import MemoryStore

NOW_MS = 1_000
PLAIN = Append(key("s"), TEXT, b"xy", [1, 1])
# What must end a run of plain appends, one thing at a time.
OTHERS = [
    replace(PLAIN, key=key("t")),
    replace(PLAIN, key=key("absent")),
    replace(PLAIN, content_type=JSON),
    replace(PLAIN, close=True),
    replace(PLAIN, data=b"", lengths=[]),
    replace(PLAIN, data=b"", lengths=[], close=True),
    replace(PLAIN, seq="1"),
    replace(PLAIN, seq="2"),
    replace(PLAIN, producer=ProducerStamp("p", 0, 0)),
    replace(PLAIN, producer=ProducerStamp("p", 0, 1)),
    replace(PLAIN, if_match=IfMatch(())),
    Create(key("s"), Settings(TEXT), implicit_bucket=True),
    Delete(key("s")),
]
commands = st.one_of(st.just(PLAIN), st.sampled_from(OTHERS))


def applied(entries: list[list[Command]]) -> tuple[list[Outcome], bytes, dict[int, bytes]]:
    """Outcomes, every row to store, and the changes for live readers."""
    state = State(MemoryStore())
    machine = Machine(state)
    outcomes = []
    for index, commands in enumerate(entries, 1):
        outcomes += machine.apply(index, 1, NOW_MS, commands)
    told = {number: b"".join(change.parts) for number, change in machine.take_changes().items()}
    state.header.applied_index = 0
    rows = msgspec.msgpack.encode(sorted(state.begin_flush()))
    return outcomes, rows, told


@given(st.lists(commands, max_size=8), st.sampled_from([None, 60_000]))
def test_a_batch_of_commands_comes_out_as_the_same_commands_alone(
    batch: list[Command], ttl_ms: int | None
) -> None:
    begin: list[Command] = [
        Create(key(name), Settings(TEXT, ttl_ms=ttl_ms), implicit_bucket=True)
        for name in ("s", "t")
    ]
    alone = [[command] for command in [*begin, *batch]]
    assert applied([begin, batch]) == applied(alone)
