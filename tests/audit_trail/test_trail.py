"""The audit trail as its callers see it: no act without an entry, no refusal that waits."""

from __future__ import annotations

import json
import resource
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from streamd.audit_trail.refusals import MAX_OF_A_KIND, WINDOW_S, Kind
from streamd.audit_trail.sinks import FileSink, Sink, SinkFailed
from streamd.audit_trail.trail import ASK_TIMEOUT_S, MAX_WAITING, AuditTrail, AuditUnavailable
from streamd.config.settings import ConfigError
from streamd.process.metrics import Metrics
from streamd.process.threads import in_thread

STRANGER = Kind(401, "INVALID_TOKEN", "10.0.0.1", None)


class Store:
    """A place for entries that a test can break, or hold up."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.is_broken = False
        self.room = trio.Event()
        self.room.set()
        self.tries = 0

    async def open(self) -> None: ...

    async def write(self, entries: Sequence[bytes], *, durable: bool) -> None:
        self.tries += 1
        await self.room.wait()
        if self.is_broken:
            raise SinkFailed("no space left")
        self.entries += [{**json.loads(entry), "durable": durable} for entry in entries]

    async def reopen(self) -> None: ...

    async def close(self) -> None: ...

    @property
    def events(self) -> list[str]:
        return [entry["event"] for entry in self.entries]


@asynccontextmanager
async def recording(sink: Sink, metrics: Metrics | None = None) -> AsyncIterator[AuditTrail]:
    trail = AuditTrail(sink, metrics or Metrics(), node_id=7, clock_ms=lambda: 1_700_000_000_123)
    async with trail.opened(), trail.running():
        yield trail


async def test_an_entry_has_the_time_the_node_and_an_id(autojump_clock: object) -> None:
    store = Store()
    async with recording(store) as trail:
        trail.tell("started", auth="required")
        trail.refused(STRANGER, {"who": None})
    started, refused, stopped = store.entries
    assert started["time"] == "2023-11-14T22:13:20.123Z"
    assert started["node"] == 7
    assert started["auth"] == "required"
    assert refused["who"] is None
    assert stopped["event"] == "stopped"
    assert stopped["error"] is None
    assert len({entry["id"] for entry in store.entries}) == 3


async def test_an_act_begins_only_once_its_entry_is_durable(autojump_clock: object) -> None:
    store = Store()
    async with recording(store) as trail:
        entry_id = await trail.asked({"path": "/auth/tokens"})
        assert store.entries[-1]["event"] == "asked"
        assert store.entries[-1]["durable"]
        await trail.done(entry_id, {"status": 201})
        assert store.entries[-1]["of"] == entry_id
        assert store.entries[-1]["durable"]


async def test_an_act_that_cannot_be_recorded_does_not_happen(autojump_clock: object) -> None:
    store = Store()
    metrics = Metrics()
    with capture_logs() as logs:
        async with recording(store, metrics) as trail:
            store.is_broken = True
            for _ in range(3):
                with pytest.raises(AuditUnavailable, match="no space left"):
                    await trail.asked({})
            assert b"streamd_audit_failing 1.0" in metrics.exposition()
            store.is_broken = False
            await trail.asked({})
            assert b"streamd_audit_failing 0.0" in metrics.exposition()
    assert store.events == ["asked", "stopped"], "what was refused has no entry"
    assert [log["log_level"] for log in logs] == ["error", "info"], "said once"


async def test_an_act_waits_only_so_long_for_a_slow_disk(autojump_clock: object) -> None:
    store = Store()
    async with recording(store) as trail:
        store.room = trio.Event()
        began = trio.current_time()
        with pytest.raises(AuditUnavailable):
            await trail.asked({})
        assert trio.current_time() - began == ASK_TIMEOUT_S
        store.room.set()


async def test_an_outcome_that_cannot_be_stored_is_stored_later(autojump_clock: object) -> None:
    store = Store()
    async with recording(store) as trail:
        entry_id = await trail.asked({})
        store.is_broken = True
        await trail.done(entry_id, {"status": 204})
        assert store.events == ["asked"]
        store.is_broken = False
        await trio.sleep(2)
        assert store.events == ["asked", "done"]


async def test_many_refusals_of_a_kind_become_one_entry(autojump_clock: object) -> None:
    store = Store()
    async with recording(store) as trail:
        for _ in range(MAX_OF_A_KIND + 500):
            trail.refused(STRANGER, {"status": 401})
        await trio.sleep(WINDOW_S + 1)
        last = store.entries[-1]
        assert store.events == ["refused"] * MAX_OF_A_KIND + ["more-refused"]
        assert (last["count"], last["from"], last["code"]) == (500, "10.0.0.1", "INVALID_TOKEN")


async def test_the_count_of_refusals_is_stored_at_the_nodes_end(autojump_clock: object) -> None:
    store = Store()
    async with recording(store) as trail:
        for _ in range(MAX_OF_A_KIND + 1):
            trail.refused(STRANGER, {})
    assert store.events[-2:] == ["more-refused", "stopped"]


async def test_what_waits_is_bounded_and_what_is_lost_is_counted(autojump_clock: object) -> None:
    store = Store()
    metrics = Metrics()
    async with recording(store, metrics) as trail:
        store.room = trio.Event()
        for _ in range(MAX_WAITING + 50):
            trail.tell("tls-loaded")
        with pytest.raises(AuditUnavailable):
            await trail.asked({})
        assert b'streamd_audit_entries_total{outcome="lost"} 50.0' in metrics.exposition()
        store.room.set()
    # All but the last: there was no room yet for its end.
    assert store.events.count("tls-loaded") == MAX_WAITING


async def test_refusals_cause_no_further_tries_at_a_sink_that_fails(autojump_clock: object) -> None:
    store = Store()
    async with recording(store) as trail:
        store.is_broken = True
        for number in range(100):
            trail.refused(STRANGER._replace(client=str(number)), {})
            await trio.sleep(0.01)
        assert store.tries <= 3
        store.is_broken = False


async def test_a_node_that_fails_says_of_what(autojump_clock: object) -> None:
    store = Store()
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError), flatten_subgroups=True):
        async with recording(store):
            raise ZeroDivisionError
    assert store.entries[-1]["error"] is not None


# -- files -----------------------------------------------------------------------------------------


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """A disk with room for so many bytes of each file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_file_is_the_nodes_own_and_is_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    for _ in range(2):
        async with recording(FileSink(file, in_thread)) as trail:
            await trail.asked({})
    assert file.stat().st_mode & 0o777 == 0o600
    assert [entry["event"] for entry in lines(file)] == ["asked", "stopped"] * 2


async def test_a_line_that_a_full_disk_cut_off_harms_no_other(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with recording(FileSink(file, in_thread)) as trail:
        await trail.asked({"path": "/one"})
        size = file.stat().st_size
        with capture_logs(), no_file_beyond(size + 20), pytest.raises(AuditUnavailable):
            await trail.asked({"path": "/two"})
        await trail.asked({"path": "/three"})
    whole, torn, then, _ = file.read_text().splitlines()
    assert json.loads(whole)["path"] == "/one"
    assert len(torn) == 20
    assert json.loads(then)["path"] == "/three"


async def test_a_line_that_a_crash_cut_off_harms_no_other(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"event":"ask')
    async with recording(FileSink(file, in_thread)) as trail:
        await trail.asked({})
    assert json.loads(file.read_text().splitlines()[1])["event"] == "asked"


async def test_a_renamed_file_is_left_when_the_trail_is_reopened(tmp_path: Path) -> None:
    file, rotated = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    async with recording(FileSink(file, in_thread)) as trail:
        await trail.asked({"path": "/before"})
        file.rename(rotated)
        await trail.asked({"path": "/meanwhile"})
        trail.reopen()
        await trail.asked({"path": "/after"})
    assert [entry.get("path") for entry in lines(rotated)] == ["/before", "/meanwhile"]
    assert [entry.get("path") for entry in lines(file)] == ["/after", None]


async def test_the_old_file_is_written_when_there_cannot_be_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "audit.jsonl"
    async with recording(FileSink(file, in_thread)) as trail:
        (tmp_path / "logs").rename(tmp_path / "moved")
        with capture_logs() as logs:
            trail.reopen()
            await trail.asked({"path": "/still"})
    assert lines(tmp_path / "moved" / "audit.jsonl")[0]["path"] == "/still"
    assert logs[0]["log_level"] == "error"


@pytest.mark.parametrize("name", ["absent/audit.jsonl", "."])
async def test_a_file_that_cannot_be_written_prevents_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"log\.audit: .*"):
        async with recording(FileSink(tmp_path / name, in_thread)):
            pass
