"""What all tests share: reproducible Hypothesis runs, and lines to report at the end of a run."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import core, settings

from tests.support import skipped
from tests.support.long import ALL_BUT_LONG, is_long_as_a_whole
from tests.support.seeds import first_seed

if TYPE_CHECKING:
    from tests.support.machines import Play

# The same examples in every run of a commit: a failure here is a failure everywhere. Without a
# database of failures, which only this machine would have.
settings.register_profile("streamd", database=None, deadline=None, print_blob=True)
# `make test` tries fewer of them.
settings.register_profile("quick", settings.get_profile("streamd"), max_examples=25)
settings.load_profile("streamd")
vars(core)["global_force_seed"] = first_seed()

# A shell that starts the tests in the background makes them and their children ignore SIGINT, and
# nohup SIGHUP, but tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_SUMMARY = "summary"


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == ALL_BUT_LONG:
        settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected, a million objects, lives as long as the process: no search for garbage
    shall look through it, in each process that shares a run and in tests that search themselves."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_unwanted = config.option.markexpr == ALL_BUT_LONG and is_long_as_a_whole(collection_path)
    return True if is_unwanted else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.scheduling import Scheduling  # not there without xdist

    return Scheduling(config, log)


@pytest.fixture
def summary(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Show a line at the end of the run, under the name of the test's directory."""
    name = request.path.parent.name
    properties = request.node.user_properties
    return lambda line: properties.append((_SUMMARY, f"{name}: {line}"))


@pytest.fixture(name="play")
def _play(tmp_path: Path) -> Play:
    """Plays a scenario with machines in virtual time."""
    from tests.sim.runtime import run_virtually  # takes long, and few tests need it
    from tests.support.machines import play

    return lambda scenario: run_virtually(1, partial(play, scenario, tmp_path))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # From the reports, which come from the workers too when tests run in several processes.
    lines = [
        line
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, line in report.user_properties
        if name == _SUMMARY and report.when == "call"
    ]
    terminalreporter.write_line(f"random tests: SEED={first_seed()}")
    skipped.record(terminalreporter.getreports("skipped"))
    if lines:
        terminalreporter.section("what simulations and planted bugs told")
        for line in sorted(lines):
            terminalreporter.write_line(str(line))
