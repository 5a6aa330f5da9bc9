"""How a command ends when it fails: sentences on standard error, and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_LOCAL = 4


class Failure(NamedTuple):
    """An error in words for the user, and the status that it ends the process with."""

    status: int
    message: str


@contextmanager
def exit_on(failure_of: Callable[[BaseException], Failure | None]) -> Iterator[None]:
    """End the process if the work inside raises errors that `failure_of` knows, alone or in groups.

    An error that it does not know is raised, and those beside it: one of them may be a bug.
    """
    try:
        yield
    except BaseException as raised:
        failures = [failure_of(error) for error in errors_in(raised)]
        known = [failure for failure in failures if failure is not None]
        if len(known) < len(failures):
            raise
        end("\nstreamd: ".join(dict.fromkeys(message for _, message in known)), known[0].status)


def errors_in(raised: BaseException) -> list[BaseException]:
    """The errors in a group, however deep it is nested, or the error itself."""
    if isinstance(raised, BaseExceptionGroup):
        return [error for one in raised.exceptions for error in errors_in(one)]
    return [raised]


def end(message: str, status: int) -> NoReturn:
    """End the process with a sentence on standard error."""
    complain(message)
    sys.exit(status)


def complain(message: str) -> None:
    """Print a sentence on standard error, if the process has one."""
    if sys.stderr is not None:  # else print() would use standard output
        print(f"streamd: {message}", file=sys.stderr)
