"""Arguments, turns, and a trial that fails; no server is started here."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import bench.__main__ as command
from bench import auth, cluster, figures, measurements, servers, tenants, workers
from bench.client import render
from bench.errors import RunFailed, ToolMissing
from bench.machine import Cores
from bench.measurements import Measurement
from bench.results import Values
from bench.runner import Plan, run, turns
from bench.trial import Trial

SERVERS = list(servers.known().values())


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that the command would have run."""
    made: list[Plan] = []
    monkeypatch.setattr(command, "_measure", lambda plan, *_: made.append(plan))
    monkeypatch.setattr("bench.__main__.signal.signal", lambda *_: None)
    return made


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(command.main, arguments)
    return f"{result.exit_code} {result.output}"


def test_the_default_is_everything_in_three_rounds(plans: list[Plan]) -> None:
    assert invoke().startswith("0")
    (plan,) = plans
    assert (plan.rounds, plan.duration_s, plan.idle_streams) == (3, 5.0, 100_000)
    assert (plan.live_streams, plan.readers) == (100_000, 5_000)
    assert [each.name for each in plan.measurements] == [each.name for each in measurements.ALL]
    assert [each.name for each in plan.servers] == ["streamd", "node-memory", "node-file"]


def test_given_values_override_quick(plans: list[Plan]) -> None:
    assert invoke("--quick", "--rounds", "2", "--readers", "7").startswith("0")
    (plan,) = plans
    assert (plan.rounds, plan.duration_s, plan.idle_streams) == (2, 2.0, 2_000)
    assert (plan.live_streams, plan.readers) == (2_000, 7)


def test_only_and_servers_select_measurements(plans: list[Plan]) -> None:
    arguments = ("--only", "create", "--only", "sse-100", "--servers", "node-file,streamd")
    assert invoke(*arguments).startswith("0")
    (plan,) = plans
    assert [each.name for each in plan.measurements] == ["create", "sse-100"]
    assert [each.name for each in plan.servers] == ["streamd", "node-file"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--only", "nothing"),
        ("--servers", "streamd,nobody"),
        ("--rounds", "0"),
        ("--duration-s", "0"),
    ],
)
def test_nonsensical_arguments_are_refused(plans: list[Plan], arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).startswith("2")
    assert not plans


def test_an_error_for_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        click.BadParameter, match="'x' is not one of streamd, node-memory, node-file"
    ):
        command.pick("--servers", SERVERS, ["x"])


def test_a_missing_tool_is_reported_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ToolMissing("the benchmark needs wrk")

    monkeypatch.setattr("bench.wrk.require", missing)
    monkeypatch.setattr("bench.__main__.signal.signal", lambda *_: None)
    assert invoke() == "1 Error: the benchmark needs wrk\n"
    for other in (auth, cluster, tenants, workers):
        result = CliRunner().invoke(other.main)
        assert (result.exit_code, result.output) == (1, "Error: the benchmark needs wrk\n")


def test_more_readers_than_files_can_be_open_are_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.__main__.signal.signal", lambda *_: None)
    monkeypatch.setattr("bench.wrk.require", lambda: None)
    arguments = ("--readers", str(1 << 40), "--servers", "streamd")
    shown = invoke(*arguments)
    assert shown.startswith("1 Error: one process will need 1,099,511,628,276 open files, and may")
    assert "fewer --readers" in shown


def test_the_servers_take_turns_going_first() -> None:
    first = [turns(SERVERS, round_index)[0].name for round_index in range(4)]
    assert first == ["streamd", "node-memory", "node-file", "streamd"]
    assert turns(SERVERS, 1) == [SERVERS[1], SERVERS[2], SERVERS[0]]


def test_a_failing_trial_loses_only_its_own_figures(tmp_path: Path) -> None:
    def measure(trial: Trial) -> Values:
        assert list(trial.data_dir.iterdir()) == []
        if trial.server.name == "node-memory":
            raise RunFailed("no answer")
        return {figures.CREATE.rate: 5.0}

    said: list[str] = []
    plan = Plan(
        measurements=[Measurement("create", (figures.CREATE.rate,), measure)],
        servers=SERVERS,
        rounds=2,
        duration_s=1.0,
        idle_streams=1,
        live_streams=1,
        readers=1,
        data_dir=tmp_path / "data",
        cores=Cores(None, None),
    )
    results = run(plan, said.append)
    assert len(said) == 6
    assert results.samples["create.rate"] == {"streamd": [5.0, 5.0], "node-file": [5.0, 5.0]}
    assert results.failed == {("create.rate", "node-memory")}
    assert results.failures[0] == "round 1/2 create node-memory: no answer"
    assert list(plan.data_dir.iterdir()) == []


def test_each_measurement_and_server_has_a_unique_name() -> None:
    names = [each.name for each in measurements.ALL]
    assert len(set(names)) == len(names)
    listed = [figure for each in measurements.ALL for figure in each.figures]
    assert listed == list(figures.ALL)


def test_a_request_on_the_wire() -> None:
    assert render("h", "POST", "/s", "text/plain", b"ab") == (
        b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nab"
    )
    assert render("h", "PUT", "/s", None, b"").endswith(b"\r\nContent-Length: 0\r\n\r\n")
    assert render("h", "GET", "/s", None, b"") == b"GET /s HTTP/1.1\r\nHost: h\r\n\r\n"
