"""A copy in SQLite, as another program reads it, beside the state that the stream had."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from streamd.state import MaterializedState
from tests.state.events import control, decoded


class Kept(NamedTuple):
    """What a file holds, as another program reads it."""

    next_offset: str
    events: int
    rows: dict[tuple[str, str], Any]


def kept(path: Path) -> Kept:
    with closing(sqlite3.connect(path)) as file:
        if not file.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            return Kept("-1", 0, {})
        file.execute("BEGIN")
        offset, events = file.execute("SELECT next_offset, events FROM copy").fetchone()
        rows = file.execute("SELECT type, key, value FROM rows").fetchall()
    return Kept(offset, events, {(type_, key): json.loads(value) for type_, key, value in rows})


def record_number(offset: str) -> int:
    """How many messages are before an offset of streamd."""
    return 0 if offset == "-1" else int(offset.partition("_")[0])


def state_after(events: list[Any]) -> dict[tuple[str, str], Any]:
    """What the rows must be after these events, by the reference semantics."""
    state = MaterializedState()
    for event in events:
        if event == control("reset"):
            state.clear()
        else:
            state.apply(decoded(event))
    return {
        (type_, key): value
        for type_ in ("user", "flag")
        for key, value in state.get_type(type_).items()
    }


def assert_true(path: Path, events: list[Any]) -> Kept:
    """Check that the copy is the state of the stream at its offset, with each event once."""
    found = kept(path)
    assert found.events == record_number(found.next_offset)
    assert found.rows == state_after(events[: found.events])
    return found
