"""What can go wrong in a measurement."""

from __future__ import annotations

import click


class BenchError(click.ClickException):
    """The measurement cannot continue; the message says what a person can do.

    A command that raises it prints the message and exits with status 1.
    """


class ToolMissing(BenchError):
    """A program that the measurement needs is not installed."""


class RunFailed(BenchError):
    """One run gave no valid figure; the others may."""
