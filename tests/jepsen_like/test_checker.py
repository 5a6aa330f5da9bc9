"""Good histories pass; each corruption of one is found by its name, and nothing else is."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.jepsen_like import corruptions, history
from tests.jepsen_like.checker import check, main
from tests.jepsen_like.findings import Anomaly, MalformedHistory, Report
from tests.jepsen_like.history import Operation, Recorder, Stamp
from tests.jepsen_like.simulated import STREAM, Simulation, token
from tests.support.seeds import seeds

TAPES = st.lists(st.integers(0, 2**16), min_size=100, max_size=900)
SEEDS = st.integers(0, 2**32)
PLANTS = [
    *((anomaly, plant, False) for anomaly, plant in corruptions.OPEN),
    *((anomaly, plant, True) for anomaly, plant in corruptions.CLOSED_STREAM),
]

examples = pytest.mark.parametrize("examples", [20, pytest.param(100, marks=pytest.mark.long)])


def chooser(tape: list[int]) -> Callable[[int], int]:
    """Take one choice after the other from a tape; zero past its end."""
    numbers = iter(tape)
    return lambda below: next(numbers, 0) % below


def names(report: Report) -> set[Anomaly]:
    return {finding.anomaly for finding in report.findings}


def assert_good(tape: list[int]) -> None:
    simulation = Simulation(chooser(tape))
    for _ in range(len(tape) // 2):
        simulation.step()
    report = check(simulation.finish())
    assert [str(finding) for finding in report.findings] == []


@examples
def test_a_good_history_has_no_findings(examples: int) -> None:
    settings(max_examples=3 * examples)(given(TAPES)(assert_good))()


def test_good_histories_contain_every_kind_of_operation() -> None:
    total: Counter[str] = Counter()
    for seed in range(300):
        simulation = Simulation(random.Random(seed).randrange)
        for _ in range(seed):
            simulation.step()
        report = check(simulation.finish())
        assert report.is_valid
        total += report.counts
    kinds = ("append", "close", "delete", "read", "head", "deliver")
    wanted = {f"{kind} {outcome}" for kind in kinds for outcome in ("ok", "fail", "unknown")}
    assert wanted | {"unknown that took effect", "without final read"} <= set(total)


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_histories_to_corrupt_are_good(is_closed: bool) -> None:
    for seed in seeds(100):
        world = corruptions.good_world(random.Random(seed).randrange, 80, is_closed)
        assert check(world.history).is_valid


@examples
@pytest.mark.parametrize(("anomaly", "plant", "is_closed"), PLANTS)
def test_each_corruption_is_found_by_its_name_and_nothing_else_is(
    anomaly: Anomaly, plant: corruptions.Plant, is_closed: bool, examples: int
) -> None:
    @settings(max_examples=examples)
    @given(SEEDS, st.integers(0, 300))
    def spoil(seed: int, steps: int) -> None:
        world = corruptions.good_world(random.Random(seed).randrange, steps, is_closed)
        plant(world)
        report = check(world.history)
        found = [str(finding) for finding in report.findings]
        assert names(report) == {anomaly}, "\n".join(found)

    spoil()


def test_every_anomaly_has_a_corruption() -> None:
    of_several_lives = {Anomaly.RESURRECTED_DATA}
    assert {anomaly for anomaly, _, _ in PLANTS} | of_several_lives == set(Anomaly)


@pytest.mark.long
def test_a_million_operations_of_clients_that_often_time_out_are_checked() -> None:
    simulation = Simulation(random.Random(1).randrange, clients=8)
    while len(simulation.history) < 1_000_000:
        simulation.step(may_close=False)
    operations = simulation.finish()
    started_s = time.perf_counter()
    report = check(operations)
    print(f"{len(operations)} operations checked in {time.perf_counter() - started_s:.1f} s")
    assert report.is_valid
    assert report.counts["unknown that took effect"] > 1000


# -- several lives of one path ----------------------------------------------------------------


class Lives:
    """Writes histories by hand, one operation after the other."""

    def __init__(self) -> None:
        self.history: list[Operation] = []
        self.now_ns = 0

    def do(self, kind: history.Kind, incarnation: int, **fields: object) -> Operation:
        self.now_ns += 10
        client = f"c{self.now_ns}"
        operation = Operation(client, kind, self.now_ns, self.now_ns + 5, "ok", STREAM, incarnation)
        for name, value in fields.items():
            setattr(operation, name, value)
        self.history.append(operation)
        return operation

    def names(self) -> set[Anomaly]:
        return names(check(self.history))


@pytest.fixture
def lives() -> Lives:
    """A stream with `<old>`, deleted and created again."""
    lives = Lives()
    lives.do("create", 0)
    lives.do("append", 0, payload="<old>", next_offset=token(1, 5))
    lives.do("delete", 0)
    lives.do("create", 1)
    return lives


def test_a_recreated_stream_that_begins_empty_is_good(lives: Lives) -> None:
    lives.do("final_read", 1, next_offset=token(0, 0))
    assert lives.names() == set()


def test_bytes_of_a_former_life_in_the_log_are_resurrected(lives: Lives) -> None:
    lives.do("final_read", 1, data="<old>", next_offset=token(1, 5))
    assert lives.names() == {Anomaly.RESURRECTED_DATA}


def test_a_reader_that_sees_a_former_life_sees_resurrected_data(lives: Lives) -> None:
    lives.do("read", 1, offset="-1", data="<old>", next_offset=token(1, 5))
    lives.do("append", 1, payload="<new>", next_offset=token(1, 5))
    lives.do("final_read", 1, data="<new>", next_offset=token(1, 5))
    assert lives.names() == {Anomaly.RESURRECTED_DATA}


@pytest.mark.parametrize("outcome", ["ok", "unknown"])
def test_an_append_that_overlaps_the_next_life_may_belong_to_it(
    lives: Lives, outcome: history.Outcome
) -> None:
    straying = lives.history[1]
    straying.outcome, straying.returned_ns = outcome, 1000
    lives.do("final_read", 1, data="<old>", next_offset=token(1, 5))
    assert lives.names() == set()


def test_an_append_that_strayed_into_a_life_without_a_final_read_takes_its_room(
    lives: Lives,
) -> None:
    lives.history[1].outcome = "unknown"
    lives.do("append", 1, payload="<new>", next_offset=token(2, 10))
    lives.do("delete", 1)
    assert lives.names() == set()


def test_an_append_that_strayed_out_of_a_life_without_a_final_read_leaves_no_mark(
    lives: Lives,
) -> None:
    lives.do("append", 1, payload="<one>", next_offset=token(1, 5))
    lives.do("read", 1, offset="-1", data="<one>", next_offset=token(1, 5))
    straying = lives.do("append", 1, payload="<a>", next_offset=token(1, 3))
    lives.do("delete", 1)
    lives.do("create", 2)
    straying.returned_ns = lives.now_ns + 8
    lives.do("delete", 2)
    assert lives.names() == set()


def test_a_read_that_overlaps_the_next_life_proves_nothing(lives: Lives) -> None:
    lives.do("append", 1, payload="<new>", next_offset=token(1, 5))
    straying = lives.do("read", 0, offset="-1", data="<new>", next_offset=token(1, 5))
    straying.invoked_ns = 15
    lives.do("final_read", 1, data="<new>", next_offset=token(1, 5))
    report = check(lives.history)
    assert report.is_valid
    assert report.counts["ambiguous"] == 1


@pytest.mark.parametrize("kind", ["close", "delete"])
def test_a_close_or_delete_that_overlaps_the_next_life_may_belong_to_it(
    lives: Lives, kind: history.Kind
) -> None:
    straying = lives.do(kind, 0, next_offset=token(0, 0))
    straying.invoked_ns = 15
    if kind == "close":
        lives.do("final_read", 1, next_offset=token(0, 0), closed=True)
    else:
        lives.do("final_read", 1, outcome="fail", refusal=history.NOT_FOUND)
    assert lives.names() == set()


def test_without_a_final_read_two_appends_at_one_offset_are_still_found() -> None:
    lives = Lives()
    lives.do("create", 0)
    lives.do("append", 0, payload="<a>", next_offset=token(1, 3))
    lives.do("append", 0, payload="<b>", next_offset=token(1, 3))
    lives.do("delete", 0)
    assert Anomaly.INCONSISTENT_OFFSETS in lives.names()
    assert check(lives.history).counts["without final read"] == 1


def test_a_retry_answered_with_another_offset_is_found() -> None:
    lives = Lives()
    lives.do("create", 0)
    stamp = Stamp("p", 0, 0)
    lives.do("append", 0, payload="<a>", stamp=stamp, next_offset=token(1, 3))
    retry = lives.do("append", 0, payload="<a>", stamp=stamp, duplicate=True)
    retry.next_offset = token(0, 0)
    lives.do("final_read", 0, data="<a>", next_offset=token(1, 3))
    assert lives.names() == {Anomaly.INCONSISTENT_OFFSETS}


# -- histories that break the recorder's rules ------------------------------------------------


def test_a_history_with_operations_after_an_unknown_write_is_malformed() -> None:
    lives = Lives()
    lives.do("append", 0, payload="<a>", outcome="unknown", client="c")
    lives.do("head", 0, next_offset=token(0, 0), client="c")
    with pytest.raises(MalformedHistory, match="c was not done"):
        check(lives.history)


def test_a_history_with_a_repeated_payload_without_a_producer_is_malformed() -> None:
    lives = Lives()
    lives.do("append", 0, payload="<a>", next_offset=token(1, 3))
    lives.do("append", 0, payload="<a>", next_offset=token(1, 3))
    with pytest.raises(MalformedHistory, match="not as a retry"):
        check(lives.history)


# -- the recorder and the command -------------------------------------------------------------


def test_a_recorded_history_is_loaded_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    clock = iter(range(100))
    with Recorder(path, now_ns=lambda: next(clock)) as recorder:
        stamp = Stamp("p", 1, 2)
        pending = recorder.invoke("c", "append", "b/s", 3, payload=b"\x00\xff", stamp=stamp)
        pending.ok(next_offset=token(1, 2))
        recorder.invoke("c", "head", "b/s", 3, node="n1").fail(history.NOT_FOUND)
    append, head = history.load([path])
    assert append == pending.operation
    assert (append.payload, append.stamp, append.outcome) == ("\x00\xff", stamp, "ok")
    assert (append.invoked_ns, append.returned_ns) == (0, 1)
    assert (head.outcome, head.refusal, head.node) == ("fail", history.NOT_FOUND, "n1")


def test_an_operation_without_an_answer_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with Recorder(path) as recorder:
        with (
            pytest.raises(TimeoutError),
            recorder.invoke("a", "append", "b/s", payload=b"<1>"),
        ):
            raise TimeoutError
        recorder.invoke("b", "append", "b/s", payload=b"<2>")
    assert [o.outcome for o in history.load([path])] == ["unknown", "unknown"]


def test_an_operation_returns_only_once(tmp_path: Path) -> None:
    with Recorder(tmp_path / "history.jsonl") as recorder:
        pending = recorder.invoke("a", "head", "b/s")
        pending.ok()
        with pytest.raises(RuntimeError):
            pending.unknown()


def test_threads_share_a_recorder(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with Recorder(path) as recorder, ThreadPoolExecutor(8) as threads:

        def work(client: int) -> None:
            for number in range(200):
                payload = b"<%d.%d>" % (client, number)
                recorder.invoke(f"c{client}", "append", "b/s", payload=payload).fail("no")

        list(threads.map(work, range(8)))
    assert len({operation.payload for operation in history.load([path])}) == 1600


def test_the_command_accepts_a_good_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "good.jsonl"
    history.save(good, corruptions.good_world(random.Random(1).randrange, 50, True).history)
    assert main([str(good)]) == 0
    assert "no findings" in capsys.readouterr().out


def test_the_command_names_what_it_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = corruptions.good_world(random.Random(1).randrange, 50, False)
    corruptions.a_head_with_an_old_tail(world)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    history.save(first, world.history[:30])
    history.save(second, world.history[30:])
    assert main([str(first), str(second)]) == 1
    assert "stale read: 1" in capsys.readouterr().out


def test_the_command_refuses_a_malformed_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"client": ')
    assert main([str(broken)]) == 2
    assert "cannot check" in capsys.readouterr().err
