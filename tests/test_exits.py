"""How commands end when they fail."""

from __future__ import annotations

import pytest

from streamd.process.exits import Failure, exit_on


def failure_of(error: BaseException) -> Failure | None:
    return Failure(3, str(error)) if isinstance(error, OSError) else None


def test_a_known_error_ends_the_process_with_its_sentence_and_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="3"), exit_on(failure_of):
        raise OSError("the disk is full")
    assert capsys.readouterr().err == "streamd: the disk is full\n"


def test_errors_of_nested_groups_are_reported_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    one, again, other = OSError("one"), OSError("one"), OSError("other")
    with pytest.raises(SystemExit, match="3"), exit_on(failure_of):
        raise ExceptionGroup("", [one, ExceptionGroup("", [again, other])])
    assert capsys.readouterr().err == "streamd: one\nstreamd: other\n"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        KeyboardInterrupt(),
        ExceptionGroup("", [OSError("known"), ValueError("a bug")]),
    ],
)
def test_an_unknown_error_is_raised_with_those_beside_it(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)) as raised, exit_on(failure_of):
        raise error
    assert raised.value is error
    assert capsys.readouterr().err == ""


def test_a_command_that_ends_by_itself_ends_so() -> None:
    with pytest.raises(SystemExit, match="7"), exit_on(failure_of):
        raise SystemExit(7)
