"""What all tests share: reproducible Hypothesis runs, and a place for what a run has to tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

# The same examples in every run: a failure here is a failure everywhere.
settings.register_profile("streamd", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("streamd")

_LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def summary(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Have a line shown at the end of the run, under the name of the test's directory."""
    lines = request.config.stash.setdefault(_LINES, [])
    return lambda line: lines.append(f"{request.path.parent.name}: {line}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("what simulations and planted bugs told")
        for line in lines:
            terminalreporter.write_line(line)
